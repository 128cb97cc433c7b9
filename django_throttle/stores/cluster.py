"""The transport to a Redis Cluster: calls go to all nodes at once; each node has its own pool and breaker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ResponseError,
    TryAgainError,
)

from django_throttle.exceptions import Cause, InvalidSetting, StoreError
from django_throttle.stores.addresses import Address, Host, find_address
from django_throttle.stores.base import adrive, drive
from django_throttle.stores.breaker import Breaker, Unbroken
from django_throttle.stores.clients import LoopClients, async_client, sync_client
from django_throttle.stores.cluster_map import Round, Router, Slots, Told, slot_of
from django_throttle.stores.failures import COUNTED, cause_of, waited
from django_throttle.stores.pool import Pool
from django_throttle.stores.timeouts import EVENTLET, Deadline, LoopDeadline, heed_cancellation, is_patched_by_eventlet
from django_throttle.stores.transport import Call, Transport

logger = logging.getLogger("django_throttle")

Commands = Sequence[Sequence[Any]]
Outcome = list[Any] | Exception
# redis-py 5 gives these errors their class only in connections of its own cluster client.
_ERRORS: Final[dict[str, Callable[[str], ResponseError]]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "CROSSSLOT": ClusterCrossSlotError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "TRYAGAIN": TryAgainError,
}


class Node:
    """One node: returns the reply of every command, errors in their places, or the one error of all of them."""

    def __init__(self, host: Host, settings: dict[str, Any], seconds: float, most: int) -> None:
        self.name = f"{host[0]}:{host[1]}"
        given = {**settings, "host": host[0], "port": host[1]}
        self.breaker = Breaker(fails_over=True)
        self._seconds = seconds
        self._pool = Pool(sync_client(given, seconds, most).connection_pool, most, seconds / 2)
        self._loops = LoopClients(lambda: [async_client(given, seconds, most)])

    def post(self, commands: Commands) -> AbstractConnection | Exception:
        """Send commands; returns the connection to collect from, or the error."""
        if resting := self._admit():
            return resting
        try:
            return self._pool.post(commands)
        except Exception as error:  # noqa: BLE001  (the failure of one node is no other's)
            self._note(error)
            return error
        except BaseException:
            self.breaker.abandoned()
            raise

    def collect(self, connection: AbstractConnection, count: int) -> Outcome:
        """Receive the replies to what was posted."""
        try:
            return self._note(self._pool.collect(connection, count))
        except Exception as error:  # noqa: BLE001
            return self._note(error)
        except BaseException:
            self.breaker.abandoned()
            raise

    def drop(self, connection: AbstractConnection) -> None:
        """Close the connection, as nobody collects."""
        self._pool.drop(connection)
        self.breaker.abandoned()

    async def ask(self, commands: Commands, until: float) -> Outcome:
        """Send and wait, until a moment of the loop's clock."""
        if resting := self._admit():
            return resting
        try:
            async with LoopDeadline(until):
                with heed_cancellation():
                    replies = await _send(await self._loops.get(), commands)
        except Exception as error:  # noqa: BLE001
            return self._note(error)
        except BaseException:
            self.breaker.abandoned()
            raise
        return self._note(replies)

    def _admit(self) -> StoreError | None:
        """The error while its breaker is open."""
        wait = self.breaker.admit()
        return StoreError(Cause.BREAKER, f"{self.name} failed a moment ago", retry_after=wait) if wait else None

    def _note(self, outcome: Outcome) -> Outcome:
        """Tell the breaker; returns the outcome, each error of a cluster under its class."""
        if isinstance(outcome, list):
            outcome = [_classed(reply) for reply in outcome]
        failures = [one for one in (outcome if isinstance(outcome, list) else [outcome]) if _is_failure(one)]
        if failures:
            if self.breaker.failed(waited(failures[0], self._seconds)):
                logger.warning("%s does not answer (%r); failure policies decide until it does", self.name, failures[0])
        elif isinstance(outcome, list):
            if lasted := self.breaker.succeeded():
                logger.warning("%s answers again, after %.1f s", self.name, lasted)
        else:
            self.breaker.abandoned()
        return outcome


def _classed(reply: Any) -> Any:
    if type(reply) is not ResponseError:
        return reply
    code, _, rest = str(reply).partition(" ")
    return _ERRORS[code](rest) if code in _ERRORS else reply


def _is_failure(reply: object) -> bool:
    # A node that says of a slot that it moves, or that nobody serves it, is well itself.
    of_a_slot = isinstance(reply, (ClusterDownError, TryAgainError))
    return isinstance(reply, Exception) and not of_a_slot and cause_of(reply) in COUNTED


async def _send(client: Any, commands: Commands) -> list[Any]:
    if len(commands) == 1:
        try:
            return [await client.execute_command(*commands[0])]
        except ResponseError as error:
            return [error]
    pipeline = client.pipeline(transaction=False)
    for parts in commands:
        pipeline.execute_command(*parts)
    return list(await pipeline.execute(raise_on_error=False))


LATE: Final = "deadline passed"


class ClusterTransport:
    """Sends calls to the nodes that serve their slots. Raises nothing: a failure stands in place of the reply."""

    slot_of = staticmethod(slot_of)
    has_sentinels = False

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

    def server_says(self, section: str) -> str:
        """Nothing: each node has settings of its own."""
        return ""

    def look(self) -> None:
        """Nothing: a master that is cut off from the others of a Cluster refuses to serve by itself."""

    def node_of(self, key: str) -> object:
        """Which node has a key, as far as is known."""
        return self._router.slots.owner(slot_of(key))

    def send_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """One round trip to all nodes at once, as long as each is where it was."""
        until = time.monotonic() + (seconds or self.seconds)
        journey = self._router.deliver(calls, lambda: time.monotonic() > until)
        with Deadline(seconds or self.seconds):
            return drive(journey, lambda round_: self._exchange(round_, until))

    async def asend_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """The same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (seconds or self.seconds)
        journey = self._router.deliver(calls, lambda: loop.time() > until)
        return await adrive(journey, lambda round_: self._aexchange(round_, until))

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
                with Deadline((until - time.monotonic()) * round_.share / (len(posted) + 1)):
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


def connect(address: str, seconds: float, max_connections: int) -> Transport | ClusterTransport:
    """The transport to an address, or to a CACHES alias; connects when first used. Raises InvalidSetting."""
    if is_patched_by_eventlet():
        raise InvalidSetting(EVENTLET)
    found = find_address(address)
    for reason in found.wrong:
        logger.error("REDIS: %s; it is left out", reason)
    return (ClusterTransport if found.is_cluster else Transport)(found, seconds, max_connections)
