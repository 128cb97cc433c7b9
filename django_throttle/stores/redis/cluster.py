"""Transport to a Redis Cluster: the slot map, the routing of calls, and a pool and a circuit breaker for each node.

Calls are sent to all nodes at once. The router, which does no I/O, decides redirects, retries and pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import Any, Final, NamedTuple

from redis import exceptions as errors
from redis.connection import AbstractConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from django_throttle.core.io import run
from django_throttle.exceptions import Cause, InvalidSetting, StoreError
from django_throttle.runtime import in_child
from django_throttle.stores.redis.addresses import Address, Host, find_address
from django_throttle.stores.redis.clients import LoopClients, loop_client, sync_client
from django_throttle.stores.redis.failures import COUNTED_CAUSES, Breaker, ClosedBreaker, cause_of, errors_of, waited
from django_throttle.stores.redis.loop_connections import Request
from django_throttle.stores.redis.pool import TIMEOUTS, Pool, pack, text
from django_throttle.stores.redis.timeouts import (
    EVENTLET_FAULT,
    Deadline,
    connect_seconds,
    is_patched_by_eventlet,
    seconds_for,
)
from django_throttle.stores.redis.transport import ScriptCall, Transport

LEARN_INTERVAL: Final = 0.1  # seconds between two requests for the slot map
LEARN_SHARE: Final = 1 / 3  # of a call's deadline, for each node that is asked for the slot map
MAX_ASKED_NODES: Final = 3  # for one slot map
PAUSE_SECONDS: Final = 0.004  # before a retry
ASKING: Final = pack(("ASKING",))
CLUSTER_SLOTS: Final = pack(("CLUSTER", "SLOTS"))
# In the error of a script, one of whose keys has moved before the others of its slot.
HALF_MOVED_SIGN: Final = "attempted to access a non local key"


class NodeRequests(NamedTuple):
    """Packed commands for each node, to be sent after ``pause`` seconds, within a share of the time left.

    The outcome has for each node a list with a reply or error for each command, or one error for all.
    """

    loads: dict[Host, list[bytes]]
    pause: float = 0.0
    time_share: float = 1.0


NodeReplies = dict[Host, list[Any] | Exception]
Exchange = Callable[[NodeRequests], Awaitable[NodeReplies]]


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class SlotMap:
    """Last known slot map."""

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
        """Note that a node has redirected the slot to another node."""
        self._owners[slot] = host
        self.hosts |= {host}
        self.is_outdated = True

    def try_begin_learning(self) -> bool:
        """Return True to one caller each LEARN_INTERVAL, which then requests the slot map."""
        now = time.monotonic()
        if now - self._learned_at < LEARN_INTERVAL and any(self._owners):
            return False
        self._learned_at = now
        return True

    def learn(self, reply: Iterable[Any], sender: Host) -> None:
        """Store the reply to CLUSTER SLOTS of the node ``sender``."""
        owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        hosts = set(self._seeds)
        for first, last, *nodes in reply:
            served = [(text(node[0] or sender[0]), int(node[1])) for node in nodes]
            owners[first : last + 1] = served[:1] * (last + 1 - first)
            hosts.update(served)
        self.failovers += any(self._owners) and owners != self._owners
        self._owners, self.hosts, self.is_outdated = owners, frozenset(hosts), False

    def any_node(self) -> Host:
        """Return any node, for a slot that no node serves: its error describes the fault."""
        return next(filter(None, self._owners), self._seeds[0])


@dataclass(slots=True)
class RoutedCall:
    """Call to be routed. ``host`` is the node to which it was redirected. None means the slot's owner."""

    call: ScriptCall
    slot: int
    host: Host | None = None
    is_asking: bool = False
    by_text: bool = False
    is_waiting: bool = False
    reply: object = None

    def commands(self) -> tuple[bytes, ...]:
        command = pack(self.call.by_text()) if self.by_text else self.call.packed()
        return (ASKING, command) if self.is_asking else (command,)


class Router:
    """Routes calls by the slot map, and corrects the map.

    ``is_failing`` returns True for a node that fails. ``learn_later`` is called if the map takes longer than a call.
    """

    def __init__(self, slots: SlotMap, is_failing: Callable[[Host], bool], learn_later: Callable[[], None]) -> None:
        self.slots = slots
        self._is_failing, self._learn_later = is_failing, learn_later
        self.is_far = False  # asking for the map takes longer than a call may

    async def deliver(self, calls: Sequence[ScriptCall], is_over: Callable[[], bool], exchange: Exchange) -> list[Any]:
        """Return the reply of each call, or its error."""
        routed_calls = [RoutedCall(call, slot_of(call.keys[0])) for call in calls]
        for goes_first in (True, False):
            pending = [routed for routed in routed_calls if routed.call.goes_first is goes_first]
            round_index = 0
            while pending and not (round_index and is_over()):
                await self._send(pending, round_index, exchange)
                retried = [routed for routed in pending if self._prepare_retry(routed)]
                slots = {routed.slot for routed in retried if not routed.call.goes_last}
                readers = [routed for routed in pending if routed.call.goes_last and routed.slot in slots]
                pending = retried + [routed for routed in readers if routed not in retried]
                round_index += 1
            replies = [routed.reply for routed in routed_calls]
            if goes_first and (failures := errors_of(replies)):
                return failures[:1] * len(calls)
        return replies

    async def _send(self, pending: list[RoutedCall], round_index: int, exchange: Exchange) -> None:
        failure = None
        if self.slots.is_outdated or any(map(self._is_failing, map(self._target, pending))):
            failure = await self._learn(exchange)
        loads: dict[Host, list[bytes]] = {}
        for routed in pending:
            routed.host = self._target(routed)
            loads.setdefault(routed.host, []).extend(routed.commands())
        pauses = round_index > 2 or any(routed.is_waiting for routed in pending)
        outcomes = {} if failure else await exchange(NodeRequests(loads, PAUSE_SECONDS if pauses else 0.0))
        replies = {host: iter(outcome) for host, outcome in outcomes.items() if isinstance(outcome, list)}
        for routed in pending:
            assert routed.host is not None
            if routed.host not in replies:
                routed.reply = failure or outcomes[routed.host]
                continue
            if routed.is_asking:
                next(replies[routed.host])
            routed.reply = next(replies[routed.host])

    def _target(self, routed: RoutedCall) -> Host:
        return routed.host or self.slots.owner(routed.slot) or self.slots.any_node()

    def _prepare_retry(self, routed: RoutedCall) -> bool:
        """Correct the map and the routing by an error. Return True if the call is to be sent again."""
        sender, routed.host, routed.is_asking, routed.is_waiting = routed.host, None, False, False
        match routed.reply:
            case errors.NoScriptError():
                is_retried, routed.by_text = not routed.by_text, True
                return is_retried
            case errors.MovedError() as moved:
                self.slots.move(routed.slot, _redirected(moved, sender))
            case errors.AskError() as ask if not routed.call.has_derived_keys:
                routed.host, routed.is_asking = _redirected(ask, sender), True
            case errors.AskError() | errors.TryAgainError():
                routed.is_waiting = True  # until the whole slot has moved
            case errors.ResponseError() as error if HALF_MOVED_SIGN in str(error):
                routed.is_waiting = True
            case _:
                return False
        return True

    def hosts_to_ask(self) -> list[Host]:
        """Return the nodes to ask for the slot map, in random order, those that fail last."""
        hosts = random.sample(sorted(self.slots.hosts), len(self.slots.hosts))
        return sorted(hosts, key=self._is_failing)[:MAX_ASKED_NODES]

    async def _learn(self, exchange: Exchange) -> Exception | None:
        """Request the slot map from nodes. Return the last error if none has answered and no map is known."""
        if not self.slots.try_begin_learning():
            return None
        if self.is_far and any(map(self.slots.owner, range(REDIS_CLUSTER_HASH_SLOTS))):
            self._learn_later()
            return None
        failure: Exception | None = None
        self.is_far = False
        for host in self.hosts_to_ask():
            outcome = (await exchange(NodeRequests({host: [CLUSTER_SLOTS]}, time_share=LEARN_SHARE)))[host]
            reply = outcome[0] if isinstance(outcome, list) else outcome
            if not isinstance(reply, Exception):
                self.slots.learn(reply, host)
                return None
            failure, self.is_far = reply, self.is_far or isinstance(reply, TIMEOUTS)
        if self.is_far:
            self._learn_later()
        return None if any(map(self.slots.owner, range(REDIS_CLUSTER_HASH_SLOTS))) else failure


def _redirected(error: errors.AskError, sender: Host | None) -> Host:
    return error.host or (sender or ("", 0))[0], error.port


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
    """Node of a Cluster. Returns the reply or error of each command, or one error for all."""

    def __init__(self, host: Host, settings: dict[str, object], seconds: float, max_connections: int) -> None:
        self.name = f"{host[0]}:{host[1]}"
        node_settings = {**settings, "host": host[0], "port": host[1]}
        self.breaker = Breaker(fails_over=True)
        self._seconds = seconds
        self._pool = Pool(
            sync_client(node_settings, seconds, max_connections).connection_pool, max_connections, seconds / 2
        )
        self._loops = LoopClients(lambda: [loop_client(node_settings, seconds)])

    def post(self, commands: Commands) -> AbstractConnection | Exception:
        """Send commands. Return the connection to collect from, or the error."""
        if breaker_error := self._admit():
            return breaker_error
        with self._noting() as errors_seen:
            return self._pool.post(commands)
        return errors_seen[0]

    def collect(self, connection: AbstractConnection, count: int) -> Outcome:
        """Receive the replies to posted commands."""
        with self._noting() as errors_seen:
            return self._note(self._pool.collect(connection, count))
        return errors_seen[0]

    def drop(self, connection: AbstractConnection) -> None:
        """Close the connection without collecting."""
        self._pool.drop(connection)
        self.breaker.inconclusive()

    def ask_outside_calls(self, command: bytes, seconds: float) -> Any:
        """Send a command in the background of calls, also to a node that fails. Return the reply. Raise its error."""
        with Deadline(seconds):
            (reply,) = self._pool.collect(self._pool.post((command,)), 1)
        if isinstance(reply, Exception):
            raise reply
        self._note([reply])
        return reply

    async def ask(self, commands: Commands, until: float) -> Outcome:
        """Send commands, and receive their replies until a time of the loop's clock."""
        if breaker_error := self._admit():
            return breaker_error
        with self._noting() as errors_seen:
            client = await self._loops.get()
            return self._note(await client.ask(b"".join(commands), len(commands), until))
        return errors_seen[0]

    @contextmanager
    def _noting(self) -> Iterator[list[Exception]]:
        """Report an error in the block to the breaker, and append it to the list instead of raising it."""
        errors_seen: list[Exception] = []
        try:
            yield errors_seen
        except Exception as error:  # noqa: BLE001
            self._note(error)
            errors_seen.append(error)
        except BaseException:
            self.breaker.inconclusive()
            raise

    def _admit(self) -> StoreError | None:
        wait = self.breaker.admit()
        return StoreError(Cause.BREAKER, f"{self.name} failed a moment ago", retry_after=wait) if wait else None

    def _note(self, outcome: Outcome) -> Outcome:
        """Report the outcome to the breaker. Return the outcome, with errors of a Cluster in their classes."""
        if isinstance(outcome, list):
            outcome = [_classed(reply) for reply in outcome]
        failures = list(filter(_is_failure, outcome if isinstance(outcome, list) else [outcome]))
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
    code, _, message = str(reply).partition(" ")
    return _ERRORS[code](message) if code in _ERRORS else reply


def _is_failure(reply: object) -> bool:
    # These errors are of a slot that moves or that no node serves, not of the node.
    of_a_slot = isinstance(reply, (errors.ClusterDownError, errors.TryAgainError))
    return isinstance(reply, Exception) and not of_a_slot and cause_of(reply) in COUNTED_CAUSES


DEADLINE_PASSED: Final = "deadline passed"


class ClusterTransport:
    """Transport to the nodes that serve the slots of calls. Errors stand in place of replies."""

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
        self._router = Router(SlotMap(address.hosts), self._is_failing, self._learn_later)

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """Breakers of the nodes that have been used."""
        return tuple(node.breaker for node in self._nodes.values())

    @property
    def failovers(self) -> int:
        return self._router.slots.failovers

    def server_state(self, section: str) -> str:
        """Return an empty text, as each node has its own settings."""
        return ""

    def check_primary(self) -> None:
        """Do nothing, as a primary that is partitioned from its Cluster refuses commands by itself."""

    def node_of(self, key: str) -> object:
        """Return the node that serves a key by the last known slot map."""
        return self._router.slots.owner(slot_of(key))

    def send(self, call: ScriptCall, seconds: float | None = None) -> Any:
        """Send a call. Return the reply. Raise its error."""
        (reply,) = self.send_all((call,), seconds)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send_all(self, calls: Sequence[ScriptCall], seconds: float | None = None) -> list[object]:
        """Send calls to all nodes at once, in one round trip unless slots have moved. Return replies and errors."""
        seconds = seconds_for(seconds, self.seconds)
        until = time.monotonic() + seconds
        with Deadline(seconds):
            exchange = partial(self._exchange, until=until)
            return run(self._router.deliver(calls, lambda: time.monotonic() > until, exchange))

    def post(self, requests: Sequence[Request], until: float) -> bool:
        """Return False, as ``asend_all`` has to route the calls."""
        return False

    async def asend_all(
        self, calls: Sequence[ScriptCall], seconds: float | None = None, replies: list[object] | None = None
    ) -> list[object]:
        """Do the same on the running loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_for(seconds, self.seconds)
        exchange = partial(self._aexchange, until=until)
        return await self._router.deliver(calls, lambda: loop.time() > until, exchange)

    async def _exchange(self, requests: NodeRequests, until: float) -> NodeReplies:
        seconds_left = until - time.monotonic()
        if seconds_left <= 0:
            return dict.fromkeys(requests.loads, TimeoutError(DEADLINE_PASSED))
        if requests.pause:
            time.sleep(min(requests.pause, seconds_left))  # noqa: ASYNC251 - no event loop runs here
        replies: dict[Host, Outcome] = {}
        posted: dict[Host, tuple[Node, AbstractConnection]] = {}
        try:
            for host in sorted(requests.loads):  # in a fixed order, to avoid deadlocks between threads
                node = self._node(host)
                connection = node.post(requests.loads[host])
                if isinstance(connection, Exception):
                    replies[host] = connection
                else:
                    posted[host] = node, connection
            while posted:
                host = next(iter(posted))
                node, connection = posted.pop(host)
                # A node that hangs must leave time to read the others' replies.
                with Deadline((until - time.monotonic()) * requests.time_share / (len(posted) + 1)):
                    replies[host] = node.collect(connection, len(requests.loads[host]))
        finally:
            for node, connection in posted.values():  # interrupted
                node.drop(connection)
        return replies

    async def _aexchange(self, requests: NodeRequests, until: float) -> NodeReplies:
        loop = asyncio.get_running_loop()
        seconds_left = until - loop.time()
        if seconds_left <= 0:
            return dict.fromkeys(requests.loads, TimeoutError(DEADLINE_PASSED))
        if requests.pause:
            await asyncio.sleep(min(requests.pause, seconds_left))
        until -= seconds_left * (1 - requests.time_share)
        if len(requests.loads) == 1:
            ((host, commands),) = requests.loads.items()
            return {host: await self._node(host).ask(commands, until)}
        asking = [self._node(host).ask(commands, until) for host, commands in requests.loads.items()]
        return dict(zip(requests.loads, await asyncio.gather(*asking), strict=True))

    def _node(self, host: Host) -> Node:
        node = self._nodes.get(host)
        return self._add_node(host) if node is None else node

    def _add_node(self, host: Host) -> Node:
        """Make the node of a host, unless another thread has, and forget nodes that have left the Cluster."""
        with self._lock:
            if (node := self._nodes.get(host)) is None:
                known_hosts, node = self._router.slots.hosts, Node(host, *self._arguments)
                kept_nodes = {name: other for name, other in self._nodes.items() if name in known_hosts}
                self._nodes = {**kept_nodes, host: node}  # never edited, as others read it without the lock
            return node

    def _renew(self) -> None:
        self._lock = Lock()
        self._is_learning = False

    def _learn_later(self) -> None:
        """Learn the slot map in a thread, for later callers, as the nodes are farther away than a call may take."""
        with self._lock:
            if self._is_learning:
                return
            self._is_learning = True
        # In a context of its own, without the deadline of the caller.
        thread = Thread(target=Context().run, args=(self._learn,), name="django_throttle.slots", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._is_learning = False

    def _learn(self) -> None:
        seconds = connect_seconds(self.seconds, is_watched=False)
        for host in self._router.hosts_to_ask():
            started_at = time.monotonic()
            with suppress(RedisError, OSError):  # the next call asks again
                self._router.slots.learn(self._node(host).ask_outside_calls(CLUSTER_SLOTS, seconds), host)
                self._router.is_far = time.monotonic() - started_at > self.seconds * LEARN_SHARE
                break
        self._is_learning = False

    def _is_failing(self, host: Host) -> bool:
        node = self._nodes.get(host)
        return node is not None and node.breaker.is_failing


def connect(address: str, seconds: float, max_connections: int) -> Transport | ClusterTransport:
    """Return the transport to a URL or CACHES alias, which connects when first used. Raise InvalidSetting."""
    if is_patched_by_eventlet():
        raise InvalidSetting(EVENTLET_FAULT)
    parsed = find_address(address)
    for reason in parsed.wrong:
        logger.error("REDIS: %s; the option is ignored", reason)
    return (ClusterTransport if parsed.is_cluster else Transport)(parsed, seconds, max_connections)
