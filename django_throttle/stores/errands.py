"""One command on its way to Redis and back: what is sent, what is made of the reply, what is left when none comes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import InvalidResponse

from django_throttle.connections.registry import Pair, Registry
from django_throttle.core.command import Answer, Decide, Release, passes
from django_throttle.exceptions import AskAgain, Cause, StoreError
from django_throttle.stores.ask import Announcement, Ask, pack, pack_as, together
from django_throttle.stores.batch import Alongside
from django_throttle.stores.calendar import Calendar
from django_throttle.stores.failures import LoopBlocked, cause_of
from django_throttle.stores.link import Call
from django_throttle.stores.outages import as_store_error
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

CALENDAR: Final = "calendar_window"
TOO_OLD: Final = -1
HEAD: Final = Struct(">dd")
TOLD: Final = Struct(">ddd")
MARKS: Final = Struct(">BH").pack


class Errand:
    """Asks the breaker before, tells it after, and turns every failure into a StoreError."""

    __slots__ = ("calls", "seconds", "store")

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.calls: list[Call] = []
        self.seconds: float | None = None  # less than the link's own deadline

    def __enter__(self) -> None:
        wait = self.store.breaker.admit()
        if wait:
            raise StoreError(Cause.BREAKER, "the store failed a moment ago", retry_after=wait)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, AskAgain):
            if lasted := self.store.breaker.succeeded():
                logger.warning("Redis answers again, after %.1f s", lasted)
            return
        self.give_up()
        if isinstance(error, StoreError):  # of a node that was not asked
            return
        cause = error.error if isinstance(error, Alongside) else error
        if isinstance(cause, LoopBlocked) and self.is_idempotent:
            self.store.breaker.abandoned()
            raise AskAgain(Cause.BLOCKED) from error
        if isinstance(error, Alongside):
            self.store.breaker.abandoned()
            raise StoreError(cause_of(error.error), str(error)) from error
        if isinstance(error, Exception):
            raise as_store_error(self.store, error) from error
        self.store.breaker.abandoned()  # cancelled or interrupted: that says nothing about the store

    def finish(self, replies: Sequence[Any]) -> Any:
        """The command's reply; raises the first error among the replies."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return self.read(replies)

    def read(self, replies: Sequence[Any]) -> Any:
        raise TypeError(f"{type(self).__name__} cannot read")

    @property
    def is_idempotent(self) -> bool:
        """True when carrying the command out twice is the same as once."""
        return False

    def give_up(self) -> None:
        """Nobody knows whether the command was carried out: note what has to be undone."""


class LongErrand(Errand, ABC):
    """Takes more than one round trip, and says itself which."""

    __slots__ = ()

    @abstractmethod
    def run(self) -> Any:
        """Send and read all of it; the reply."""

    @abstractmethod
    async def arun(self) -> Any:
        """The same without blocking the event loop."""


class DecideErrand(Errand):
    """Rates only: one call, one reply."""

    __slots__ = ("ask", "command", "uid")

    def __init__(self, store: RedisStore, command: Decide) -> None:
        super().__init__(store)
        self.command = command
        self.uid = store.leases.uid  # once: the agent may replace it at any moment
        keys: list[str] = []
        packed = [b""]
        whose = root = ""
        for rule, ident, cost in command.charges:
            whose, root = (whose, root) if ident == whose else (ident, store.key("", ident))  # hashed once
            keys.append(root + rule.id)
            packed.append(pack(rule, cost))
        algorithms = frozenset([charge.rule.plan.algorithm for charge in command.charges])
        own = (self.uid, command.lease or "", store.lease_ttl_ms) if "concurrency" in algorithms else ()
        packed[0] = marks = MARKS(command.commit + 2 * bool(own), len(keys))
        repack = partial(_repack, store.calendar, marks, command) if CALENDAR in algorithms else None
        self.ask = Ask(keys, b"".join(packed), algorithms, own, repack=repack)
        self.calls.append(together((self.ask,), store.now_arg()))

    def read(self, replies: Sequence[Any]) -> tuple[Answer, ...]:
        repaired, now = HEAD.unpack_from(replies[-1])
        if repaired == TOO_OLD:
            self.store.calendar.learn(int(now))
            raise AskAgain
        if len(replies[-1]) != HEAD.size + TOLD.size * len(self.ask.keys):
            raise InvalidResponse(f"{len(replies[-1])} bytes answer {len(self.ask.keys)} charges")
        if repaired and self.store.complaints.due("repaired"):
            logger.warning("replaced %d corrupt or foreign values in Redis", repaired)
        at = int(now)
        told = TOLD.iter_unpack(replies[-1][HEAD.size :])
        answers = tuple([Answer(int(a), int(b), int(c), at) for a, b, c in told])
        self.store.fallback.note(self.command.charges, answers)
        return answers


def _repack(calendar: Calendar, marks: bytes, command: Decide) -> bytes:
    """A call by what the calendar says now."""
    packed = [marks]
    for rule, _, cost in command.charges:
        plan = calendar.plan(rule) if rule.plan.algorithm == CALENDAR else rule.plan
        packed.append(pack_as(plan, rule, cost))
    return b"".join(packed)


class LeaseErrand(DecideErrand):
    """A lease is asked for: the first time under a key, this process says beforehand what it will hold."""

    __slots__ = ("pairs", "unannounced")

    def __init__(self, store: RedisStore, command: Decide) -> None:
        super().__init__(store, command)
        leases = store.leases
        self.pairs = [(charge.rule.id, charge.ident) for charge in command.charges if charge.rule.is_concurrency]
        self.unannounced = [pair for pair in self.pairs if not leases.is_announced(*pair)]
        if self.unannounced:
            indexes = tuple([store.key(*pair) for pair in self.unannounced])
            announcement = Announcement(self.uid, leases.introduce(self.uid), indexes)
            self.ask = self.ask._replace(announcement=announcement)
            self.calls.insert(0, announce_call(store, announcement))
        self.ask = self.ask._replace(abandoned=partial(_owe, leases, self.pairs, command.lease or "", self.uid))

    def read(self, replies: Sequence[Any]) -> tuple[Answer, ...]:
        answers = super().read(replies)
        self.confirm(replies)
        if all(map(passes, self.command.charges, answers)):
            self.hold()
        return answers

    @property
    def is_idempotent(self) -> bool:
        return len(self.pairs) == len(self.command.charges)  # a lease is known by its id

    def confirm(self, replies: Sequence[Any]) -> None:
        if self.unannounced:
            self.store.leases.confirm(self.uid, replies[0], *self.unannounced)

    def hold(self) -> None:
        for pair in self.pairs:
            self.store.leases.hold(*pair, self.command.lease or "", self.uid)

    def give_up(self) -> None:
        _owe(self.store.leases, self.pairs, self.command.lease or "", self.uid)


def _owe(leases: Registry, pairs: Sequence[Pair], lease: str, uid: str) -> None:
    for pair in pairs:
        leases.owe(*pair, lease, uid)


class ReleaseErrand(Errand):
    """A lease goes back; it is owed until Redis has confirmed it, so no failure and no cancellation loses it."""

    __slots__ = ("owed",)

    def __init__(self, store: RedisStore, command: Release) -> None:
        super().__init__(store)
        self.owed = [owed for pair in command.holds for owed in store.leases.let_go(*pair, command.lease)]
        for one in self.owed:
            self.calls.append(release_call(store, *one[:4]))

    def read(self, replies: Sequence[Any]) -> None:
        self.store.leases.settle(*self.owed)


def announce_call(store: RedisStore, one: Announcement) -> Call:
    """The call that tells Redis of this process, and of the indexes under which it may hold leases."""
    keys = [store.process_key(name) for name in ("live", "meta", f"held:{one.uid}")]
    args = [store.now_arg(), one.uid, one.introduction, store.lease_ttl_ms, *one.indexes]
    return Call(script("announce"), keys, args, leads=True)


def release_call(store: RedisStore, uid: str, rule_id: str, ident: str, lease: str) -> Call:
    return Call(script("release"), (store.key(rule_id, ident),), (uid, lease), derives=True)
