"""The transport to a Redis Cluster: the slot map, the routing of calls by it, and a pool and a breaker for each node.

Calls go to all nodes at once; redirects, retries and pauses are decided by the router, which is without I/O.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple

from redis import exceptions as errors
from redis.connection import AbstractConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from django_throttle.core.io import run
from django_throttle.exceptions import Cause, InvalidSetting, StoreError
from django_throttle.runtime import in_child
from django_throttle.stores.redis.addresses import Address, Host, find_address
from django_throttle.stores.redis.clients import LoopClients, loop_client, sync_client
from django_throttle.stores.redis.failures import COUNTED, Breaker, ClosedBreaker, cause_of, waited
from django_throttle.stores.redis.loop_connections import Request
from django_throttle.stores.redis.pool import Pool, pack, text
from django_throttle.stores.redis.timeouts import EVENTLET, Deadline, is_patched_by_eventlet, seconds_for
from django_throttle.stores.redis.transport import ScriptCall, Transport

LEARN_EVERY: Final = 0.1
MOST_ASKED: Final = 3  # nodes, for the map
PAUSE: Final = 0.004
ASKING: Final = pack(("ASKING",))
MAP: Final = pack(("CLUSTER", "SLOTS"))
# A script met a key that has moved on before the others of its slot.
HALF_MOVED: Final = "attempted to access a non local key"


class NodeRequests(NamedTuple):
    """The packed commands to send to each node, after ``pause`` seconds, within a ``share`` of the time left.

    The reply has for each node a list of replies or errors, one for each command, or one error for all.
    """

    loads: dict[Host, list[bytes]]
    pause: float = 0.0
    share: float = 1.0


NodeReplies = dict[Host, list[Any] | Exception]
Exchange = Callable[[NodeRequests], Awaitable[NodeReplies]]


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class SlotMap:
    """The last known slot map."""

    def __init__(self, seeds: Iterable[Host]) -> None:
        self._seeds = tuple(seeds)
        self._owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._learned_at = float("-inf")
        self.hosts: frozenset[Host] = frozenset(self._seeds)
        self.is_outdated = True
        self.failovers = 0

    def owner(self, slot: int) -> Host | None:
        return self._owners[slot]

    def move(self, slot: int, host: Host) -> None:
        """A node has redirected the slot to another one."""
        self._owners[slot] = host
        self.hosts |= {host}
        self.is_outdated = True

    def is_due(self) -> bool:
        """True for one caller each LEARN_EVERY seconds, which then asks for the map."""
        now = time.monotonic()
        if now - self._learned_at < LEARN_EVERY and any(self._owners):
            return False
        self._learned_at = now
        return True

    def learn(self, reply: Iterable[Any], asked: Host) -> None:
        """Store the reply to CLUSTER SLOTS of the node ``asked``."""
        owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        hosts = set(self._seeds)
        for first, last, *nodes in reply:
            served = [(text(node[0] or asked[0]), int(node[1])) for node in nodes]
            owners[first : last + 1] = served[:1] * (last + 1 - first)
            hosts.update(served)
        self.failovers += any(self._owners) and owners != self._owners
        self._owners, self.hosts, self.is_outdated = owners, frozenset(hosts), False

    def any_node(self) -> Host:
        """Any node: its error says what is wrong with a slot that no node serves."""
        return next(filter(None, self._owners), self._seeds[0])


@dataclass(slots=True)
class RoutedCall:
    """One call to be routed; ``host`` is where a node has redirected it, None for the slot's owner."""

    call: ScriptCall
    slot: int
    host: Host | None = None
    asks: bool = False
    by_text: bool = False
    waits: bool = False
    reply: object = None

    def commands(self) -> tuple[bytes, ...]:
        command = pack(self.call.by_text()) if self.by_text else self.call.packed()
        return (ASKING, command) if self.asks else (command,)


class Router:
    """Routes calls by the map, and corrects it; ``is_failing`` tells which nodes fail."""

    def __init__(self, slots: SlotMap, is_failing: Callable[[Host], bool]) -> None:
        self.slots = slots
        self._is_failing = is_failing

    async def deliver(self, calls: Sequence[ScriptCall], is_over: Callable[[], bool], exchange: Exchange) -> list[Any]:
        """The reply of each call, or the error that stands for it."""
        routed = [RoutedCall(call, slot_of(call.keys[0])) for call in calls]
        for leading in (True, False):
            waiting = [one for one in routed if one.call.leads is leading]
            turn = 0
            while waiting and not (turn and is_over()):
                await self._send(waiting, turn, exchange)
                again = [one for one in waiting if self._goes_again(one)]
                slots = {one.slot for one in again if not one.call.follows}
                waiting = again + [
                    one for one in waiting if one.call.follows and one.slot in slots and one not in again
                ]
                turn += 1
            if leading and (failed := [one.reply for one in routed if isinstance(one.reply, Exception)]):
                return failed[:1] * len(calls)
        return [one.reply for one in routed]

    async def _send(self, waiting: list[RoutedCall], turn: int, exchange: Exchange) -> None:
        failure = None
        if self.slots.is_outdated or any(map(self._is_failing, map(self._target, waiting))):
            failure = await self._learn(exchange)
        loads: dict[Host, list[bytes]] = {}
        for one in waiting:
            one.host = self._target(one)
            loads.setdefault(one.host, []).extend(one.commands())
        pauses = turn > 2 or any(one.waits for one in waiting)
        outcomes = {} if failure else await exchange(NodeRequests(loads, PAUSE if pauses else 0.0))
        replies = {host: iter(outcome) for host, outcome in outcomes.items() if isinstance(outcome, list)}
        for one in waiting:
            assert one.host is not None
            if one.host not in replies:
                one.reply = failure or outcomes[one.host]
                continue
            if one.asks:
                next(replies[one.host])
            one.reply = next(replies[one.host])

    def _target(self, one: RoutedCall) -> Host:
        return one.host or self.slots.owner(one.slot) or self.slots.any_node()

    def _goes_again(self, one: RoutedCall) -> bool:
        asked, one.host, one.asks, one.waits = one.host, None, False, False
        match one.reply:
            case errors.NoScriptError():
                again, one.by_text = not one.by_text, True
                return again
            case errors.MovedError() as moved:
                self.slots.move(one.slot, _redirected(moved, asked))
            case errors.AskError() as ask if not one.call.derives:
                one.host, one.asks = _redirected(ask, asked), True
            case errors.AskError() | errors.TryAgainError():
                one.waits = True  # for the slot to have moved as a whole
            case errors.ResponseError() as error if HALF_MOVED in str(error):
                one.waits = True
            case _:
                return False
        return True

    async def _learn(self, exchange: Exchange) -> Exception | None:
        """Ask nodes for the map; returns the last error when none has answered and nothing is known."""
        if not self.slots.is_due():
            return None
        failure: Exception | None = None
        hosts = random.sample(sorted(self.slots.hosts), len(self.slots.hosts))
        for host in sorted(hosts, key=self._is_failing)[:MOST_ASKED]:
            outcome = (await exchange(NodeRequests({host: [MAP]}, share=1 / 3)))[host]
            reply = outcome[0] if isinstance(outcome, list) else outcome
            if not isinstance(reply, Exception):
                self.slots.learn(reply, host)
                return None
            failure = reply
        return None if any(map(self.slots.owner, range(REDIS_CLUSTER_HASH_SLOTS))) else failure


def _redirected(error: errors.AskError, asked: Host | None) -> Host:
    return error.host or (asked or ("", 0))[0], error.port


logger = logging.getLogger("django_throttle")

Commands = Sequence[bytes]
Outcome = list[Any] | Exception
# redis-py 5 gives these errors their class only in connections of its own cluster client.
_ERRORS: Final[dict[str, Callable[[str], errors.ResponseError]]] = {
    "ASK": errors.AskError,
    "CLUSTERDOWN": errors.ClusterDownError,
    "CROSSSLOT": errors.ClusterCrossSlotError,
    "MASTERDOWN": errors.MasterDownError,
    "MOVED": errors.MovedError,
    "TRYAGAIN": errors.TryAgainError,
}


class Node:
    """One node: returns the reply of every command, errors in their places, or the one error of all of them."""

    def __init__(self, host: Host, settings: dict[str, Any], seconds: float, most: int) -> None:
        self.name = f"{host[0]}:{host[1]}"
        given = {**settings, "host": host[0], "port": host[1]}
        self.breaker = Breaker(fails_over=True)
        self._seconds = seconds
        self._pool = Pool(sync_client(given, seconds, most).connection_pool, most, seconds / 2)
        self._loops = LoopClients(lambda: [loop_client(given, seconds)])

    def post(self, commands: Commands) -> AbstractConnection | Exception:
        """Send commands; returns the connection to collect from, or the error."""
        if resting := self._admit():
            return resting
        with self._noting() as failed:
            return self._pool.post(commands)
        return failed[0]

    def collect(self, connection: AbstractConnection, count: int) -> Outcome:
        """Receive the replies to what was posted."""
        with self._noting() as failed:
            return self._note(self._pool.collect(connection, count))
        return failed[0]

    def drop(self, connection: AbstractConnection) -> None:
        """Close the connection, as nobody collects."""
        self._pool.drop(connection)
        self.breaker.inconclusive()

    async def ask(self, commands: Commands, until: float) -> Outcome:
        """Send and wait, until a moment of the loop's clock."""
        if resting := self._admit():
            return resting
        with self._noting() as failed:
            client = await self._loops.get()
            return self._note(await client.ask(b"".join(commands), len(commands), until))
        return failed[0]

    @contextmanager
    def _noting(self) -> Iterator[list[Exception]]:
        """Tell the breaker of an error in the block, and have it in the list: the failure of one node is no other's."""
        failed: list[Exception] = []
        try:
            yield failed
        except Exception as error:  # noqa: BLE001
            self._note(error)
            failed.append(error)
        except BaseException:
            self.breaker.inconclusive()
            raise

    def _admit(self) -> StoreError | None:
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
            self.breaker.inconclusive()
        return outcome


def _classed(reply: object) -> object:
    if type(reply) is not errors.ResponseError:
        return reply
    code, _, rest = str(reply).partition(" ")
    return _ERRORS[code](rest) if code in _ERRORS else reply


def _is_failure(reply: object) -> bool:
    # A node that says of a slot that it moves, or that nobody serves it, is well itself.
    of_a_slot = isinstance(reply, (errors.ClusterDownError, errors.TryAgainError))
    return isinstance(reply, Exception) and not of_a_slot and cause_of(reply) in COUNTED


LATE: Final = "deadline passed"


class ClusterTransport:
    """Sends calls to the nodes that serve their slots. Raises nothing: a failure stands in place of the reply."""

    slot_of = staticmethod(slot_of)
    has_sentinels = False

    def __init__(self, address: Address, seconds: float, max_connections: int) -> None:
        self.seconds = seconds
        self.place = address.place
        self.breaker = ClosedBreaker()
        self._arguments = (address.settings, seconds, max_connections)
        self._nodes: dict[Host, Node] = {}
        self._renew()
        in_child(self, type(self)._renew)
        self._router = Router(SlotMap(address.hosts), self._is_failing)

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """One for each node that has been asked."""
        return tuple(node.breaker for node in self._nodes.values())

    @property
    def failovers(self) -> int:
        return self._router.slots.failovers

    def server_state(self, section: str) -> str:
        """Empty: each node has its own settings."""
        return ""

    def check_primary(self) -> None:
        """Does nothing: a primary that is partitioned from its Cluster refuses commands by itself."""

    def node_of(self, key: str) -> object:
        """The node that serves a key by the last known slot map."""
        return self._router.slots.owner(slot_of(key))

    def send(self, call: ScriptCall, seconds: float | None = None) -> Any:
        """The reply to one call, or its error."""
        (reply,) = self.send_all((call,), seconds)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send_all(self, calls: Sequence[ScriptCall], seconds: float | None = None) -> list[Any]:
        """One round trip to all nodes at once, as long as each is where it was."""
        seconds = seconds_for(seconds, self.seconds)
        until = time.monotonic() + seconds
        with Deadline(seconds):
            exchange = partial(self._exchange, until=until)
            return run(self._router.deliver(calls, lambda: time.monotonic() > until, exchange))

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """False: calls are routed one by one, and ``asend_all`` sends them."""
        return False

    async def asend_all(
        self, calls: Sequence[ScriptCall], seconds: float | None = None, replies: list[Any] | None = None
    ) -> list[Any]:
        """The same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_for(seconds, self.seconds)
        exchange = partial(self._aexchange, until=until)
        return await self._router.deliver(calls, lambda: loop.time() > until, exchange)

    async def _exchange(self, round_: NodeRequests, until: float) -> NodeReplies:
        left = until - time.monotonic()
        if left <= 0:
            return dict.fromkeys(round_.loads, TimeoutError(LATE))
        if round_.pause:
            time.sleep(min(round_.pause, left))  # noqa: ASYNC251 - no event loop runs here
        replies: dict[Host, Outcome] = {}
        posted: dict[Host, tuple[Node, AbstractConnection]] = {}
        try:
            for host in sorted(round_.loads):  # in one order, lest two wait for each other's connections
                node = self._node(host)
                connection = node.post(round_.loads[host])
                if isinstance(connection, Exception):
                    replies[host] = connection
                else:
                    posted[host] = node, connection
            while posted:
                host = next(iter(posted))
                node, connection = posted.pop(host)
                # A node that hangs must leave time to read the others' replies.
                with Deadline((until - time.monotonic()) * round_.share / (len(posted) + 1)):
                    replies[host] = node.collect(connection, len(round_.loads[host]))
        finally:
            for node, connection in posted.values():  # interrupted
                node.drop(connection)
        return replies

    async def _aexchange(self, round_: NodeRequests, until: float) -> NodeReplies:
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
        return self._add_node(host) if node is None else node

    def _add_node(self, host: Host) -> Node:
        """Make the node of a host, unless another thread has, and forget those that have left the Cluster."""
        with self._lock:
            if (node := self._nodes.get(host)) is None:
                known, node = self._router.slots.hosts, Node(host, *self._arguments)
                left = {one: each for one, each in self._nodes.items() if one in known}
                self._nodes = {**left, host: node}  # never edited, as others read it without the lock
            return node

    def _renew(self) -> None:
        self._lock = Lock()

    def _is_failing(self, host: Host) -> bool:
        node = self._nodes.get(host)
        return node is not None and node.breaker.is_failing


def connect(address: str, seconds: float, max_connections: int) -> Transport | ClusterTransport:
    """The transport to an address, or to a CACHES alias; connects when first used. Raises InvalidSetting."""
    if is_patched_by_eventlet():
        raise InvalidSetting(EVENTLET)
    parsed = find_address(address)
    for reason in parsed.wrong:
        logger.error("REDIS: %s; the option is ignored", reason)
    return (ClusterTransport if parsed.is_cluster else Transport)(parsed, seconds, max_connections)
