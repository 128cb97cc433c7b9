"""The way to a Redis Cluster: calls travel to all their nodes at once; each node has its own breaker.

Not redis-py's Cluster client, whose loops send again what may have been carried out, and outlast a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from redis.connection import AbstractConnection

from django_throttle.stores.addresses import Address, Host
from django_throttle.stores.breaker import Breaker, Unbroken
from django_throttle.stores.deadline import Within
from django_throttle.stores.link import Call
from django_throttle.stores.nodes import Node, Outcome
from django_throttle.stores.slots import Round, Router, Slots, Told, slot_of

LATE: Final = "deadline passed"


class ClusterLink:
    """Sends calls to the nodes that serve their slots. Nothing is raised: a failure stands in place of the reply."""

    slot_of = staticmethod(slot_of)

    def __init__(self, address: Address, seconds: float, max_connections: int) -> None:
        self.seconds = seconds
        self.breaker = Unbroken()
        self._arguments = (address.settings, seconds, max_connections)
        self._nodes: dict[Host, Node] = {}
        self._router = Router(Slots(address.hosts), self._is_failing)

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """One for each node that has been asked."""
        return tuple(node.breaker for node in list(self._nodes.values()))

    @property
    def failovers(self) -> int:
        """How often other nodes have taken over, as far as was noticed."""
        return self._router.slots.failovers

    def look(self) -> None:
        """Nothing: a master that is cut off from the others of a Cluster refuses to serve by itself."""

    def node_of(self, key: str) -> object:
        """Which node has a key, as far as is known."""
        return self._router.slots.owner(slot_of(key))

    def send_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """One round trip to all nodes at once, as long as each is where it was."""
        until = time.monotonic() + (seconds or self.seconds)
        journey = self._router.deliver(calls, lambda: time.monotonic() > until)
        with Within(seconds or self.seconds):
            try:
                round_ = next(journey)
                while True:
                    round_ = journey.send(self._exchange(round_, until))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    async def asend_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """The same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (seconds or self.seconds)
        journey = self._router.deliver(calls, lambda: loop.time() > until)
        try:
            round_ = next(journey)
            while True:
                round_ = journey.send(await self._aexchange(round_, until))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _exchange(self, round_: Round, until: float) -> Told:
        left = until - time.monotonic()
        if left <= 0:
            return dict.fromkeys(round_.loads, TimeoutError(LATE))
        if round_.pause:
            time.sleep(min(round_.pause, left))
        told: dict[Host, Outcome] = {}
        posted: dict[Host, tuple[Node, AbstractConnection]] = {}
        try:
            for host in sorted(round_.loads):  # in one order, lest two wait for each other's connections
                node = self._node(host)
                connection = node.post(round_.loads[host])
                if isinstance(connection, Exception):
                    told[host] = connection
                else:
                    posted[host] = node, connection
            while posted:
                host = next(iter(posted))
                node, connection = posted.pop(host)
                # One that hangs leaves time to read what the others have answered.
                with Within((until - time.monotonic()) * round_.share / (len(posted) + 1)):
                    told[host] = node.collect(connection, len(round_.loads[host]))
        finally:
            for node, connection in posted.values():  # interrupted
                node.drop(connection)
        return told

    async def _aexchange(self, round_: Round, until: float) -> Told:
        loop = asyncio.get_running_loop()
        left = until - loop.time()
        if left <= 0:
            return dict.fromkeys(round_.loads, TimeoutError(LATE))
        if round_.pause:
            await asyncio.sleep(min(round_.pause, left))
        until -= left * (1 - round_.share)
        if len(round_.loads) == 1:
            ((host, commands),) = round_.loads.items()
            return {host: await self._node(host).ask(commands, until)}
        asked = [self._node(host).ask(commands, until) for host, commands in round_.loads.items()]
        return dict(zip(round_.loads, await asyncio.gather(*asked), strict=True))

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        if node is None:
            known = self._router.slots.hosts
            self._nodes = {one: self._nodes[one] for one in self._nodes if one in known}
            node = self._nodes.setdefault(host, Node(host, *self._arguments))
        return node

    def _is_failing(self, host: Host) -> bool:
        return host in self._nodes and self._nodes[host].breaker.is_failing
