"""The slot map of a Cluster, and the routing of calls by it: redirects, retries, pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError, TryAgainError

from django_throttle.stores.addresses import Host
from django_throttle.stores.transport import Call

LEARN_EVERY: Final = 0.1
MOST_ASKED: Final = 3  # nodes, for the map
PAUSE: Final = 0.004
ASKING: Final = ("ASKING",)
# A script met a key that has moved on before the others of its slot.
HALF_MOVED: Final = "attempted to access a non local key"


class Round(NamedTuple):
    """What to send to each node, after a pause; ``share`` of the time left, at most.

    The reply to it has for each node a list of replies, errors in their places, or the one error for all.
    """

    loads: dict[Host, list[Sequence[Any]]]
    pause: float = 0.0
    share: float = 1.0


Told = dict[Host, list[Any] | Exception]
Journey = Generator[Round, Told, list[Any]]


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class Slots:
    """The slot map, as far as it is known."""

    def __init__(self, seeds: Iterable[Host]) -> None:
        self._seeds = tuple(seeds)
        self._owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._learned_at = float("-inf")
        self.hosts: frozenset[Host] = frozenset(self._seeds)
        self.is_doubtful = True
        self.failovers = 0

    def owner(self, slot: int) -> Host | None:
        return self._owners[slot]

    def move(self, slot: int, host: Host) -> None:
        """A node has redirected the slot to another one."""
        self._owners[slot] = host
        self.hosts |= {host}
        self.is_doubtful = True

    def is_due(self) -> bool:
        """True for one caller every tenth of a second, which is to learn the map."""
        now = time.monotonic()
        if now - self._learned_at < LEARN_EVERY and any(self._owners):
            return False
        self._learned_at = now
        return True

    def learn(self, reply: Iterable[Any], asked: Host) -> None:
        """CLUSTER SLOTS, as the node ``asked`` sees it."""
        owners: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        hosts = set(self._seeds)
        for first, last, *nodes in reply:
            served = [_host(node, asked) for node in nodes]
            owners[first : last + 1] = served[:1] * (last + 1 - first)
            hosts.update(served)
        self.failovers += any(self._owners) and owners != self._owners
        self._owners, self.hosts, self.is_doubtful = owners, frozenset(hosts), False

    def someone(self) -> Host:
        """Any node: it says what is wrong with a slot that nobody serves."""
        return next(filter(None, self._owners), self._seeds[0])


def _host(node: Sequence[Any], asked: Host) -> Host:
    name = node[0].decode() if isinstance(node[0], bytes) else node[0]
    return name or asked[0], int(node[1])


@dataclass(slots=True)
class Parcel:
    """One call on its way; ``host`` is where a node has redirected it, None for the slot's owner."""

    call: Call
    slot: int
    host: Host | None = None
    asks: bool = False
    by_text: bool = False
    waits: bool = False
    reply: Any = None

    def commands(self) -> tuple[Sequence[Any], ...]:
        command = self.call.by_text() if self.by_text else self.call.by_sha()
        return (ASKING, command) if self.asks else (command,)


class Router:
    """Routes calls by the map, and corrects it; ``is_failing`` tells which nodes fail."""

    def __init__(self, slots: Slots, is_failing: Callable[[Host], bool]) -> None:
        self.slots = slots
        self._is_failing = is_failing

    def deliver(self, calls: Sequence[Call], is_over: Callable[[], bool]) -> Journey:
        """The reply of each call, or the error that stands for it."""
        parcels = [Parcel(call, slot_of(call.keys[0])) for call in calls]
        for leading in (True, False):
            waiting = [parcel for parcel in parcels if parcel.call.leads is leading]
            turn = 0
            while waiting and not (turn and is_over()):
                yield from self._travel(waiting, turn)
                again = [parcel for parcel in waiting if self._goes_again(parcel)]
                slots = {parcel.slot for parcel in again if not parcel.call.follows}
                waiting = again + [
                    one for one in waiting if one.call.follows and one.slot in slots and one not in again
                ]
                turn += 1
            if leading and (failed := [parcel.reply for parcel in parcels if isinstance(parcel.reply, Exception)]):
                return failed[:1] * len(calls)
        return [parcel.reply for parcel in parcels]

    def _travel(self, waiting: list[Parcel], turn: int) -> Generator[Round, Told, None]:
        failure = None
        if self.slots.is_doubtful or any(map(self._is_failing, map(self._target, waiting))):
            failure = yield from self._learn()
        loads: dict[Host, list[Sequence[Any]]] = {}
        for parcel in waiting:
            parcel.host = self._target(parcel)
            loads.setdefault(parcel.host, []).extend(parcel.commands())
        pauses = turn > 2 or any(parcel.waits for parcel in waiting)
        told = {} if failure else (yield Round(loads, PAUSE if pauses else 0.0))
        replies = {host: iter(outcome) for host, outcome in told.items() if isinstance(outcome, list)}
        for parcel in waiting:
            assert parcel.host is not None
            if parcel.host not in replies:
                parcel.reply = failure or told[parcel.host]
                continue
            if parcel.asks:
                next(replies[parcel.host])
            parcel.reply = next(replies[parcel.host])

    def _target(self, parcel: Parcel) -> Host:
        return parcel.host or self.slots.owner(parcel.slot) or self.slots.someone()

    def _goes_again(self, parcel: Parcel) -> bool:
        asked, parcel.host, parcel.asks, parcel.waits = parcel.host, None, False, False
        match parcel.reply:
            case NoScriptError():
                again, parcel.by_text = not parcel.by_text, True
                return again
            case MovedError() as moved:
                self.slots.move(parcel.slot, _redirected(moved, asked))
            case AskError() as ask if not parcel.call.derives:
                parcel.host, parcel.asks = _redirected(ask, asked), True
            case AskError() | TryAgainError():
                parcel.waits = True  # for the slot to have moved as a whole
            case ResponseError() as error if HALF_MOVED in str(error):
                parcel.waits = True
            case _:
                return False
        return True

    def _learn(self) -> Generator[Round, Told, Exception | None]:
        """Ask nodes for the map; returns the last error when none has answered and nothing is known."""
        if not self.slots.is_due():
            return None
        failure: Exception | None = None
        hosts = random.sample(sorted(self.slots.hosts), len(self.slots.hosts))
        for host in sorted(hosts, key=self._is_failing)[:MOST_ASKED]:
            told = (yield Round({host: [("CLUSTER", "SLOTS")]}, share=1 / 3))[host]
            reply = told[0] if isinstance(told, list) else told
            if not isinstance(reply, Exception):
                self.slots.learn(reply, host)
                return None
            failure = reply
        return None if any(map(self.slots.owner, range(REDIS_CLUSTER_HASH_SLOTS))) else failure


def _redirected(error: AskError, asked: Host | None) -> Host:
    return error.host or (asked or ("", 0))[0], error.port
