"""One command on its way to Redis and back: what is sent, what is made of the reply, what is left when none comes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.command import Answer, Decide, Forget, Release, passes
from django_throttle.exceptions import AskAgain, Cause, StoreError
from django_throttle.stores.batch import Alongside, Ask, together
from django_throttle.stores.failures import COUNTED, cause_of
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import CODES, script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

CALENDAR: Final = "calendar_window"
TOO_OLD: Final = -1
PACK: Final = Struct(">BBddddd").pack
ONE: Final = Struct(">d")
TOLD: Final = Struct(">ddd")


class Errand:
    """Asks the breaker before, tells it after, and turns every failure into a StoreError."""

    __slots__ = ("calls", "store")

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.calls: list[Call] = []

    def __enter__(self) -> None:
        wait = self.store.breaker.admit()
        if wait:
            raise StoreError(Cause.BREAKER, "the store failed a moment ago", retry_after=wait)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, AskAgain):
            self.store.breaker.succeeded()
            return
        self.give_up()
        if isinstance(error, Alongside):
            self.store.breaker.abandoned()
            raise StoreError(cause_of(error.error), str(error)) from error
        if isinstance(error, Exception):
            raise _failure(self.store, error) from error
        self.store.breaker.abandoned()  # cancelled or interrupted: that says nothing about the store

    def finish(self, replies: Sequence[Any]) -> Any:
        """The command's reply; raises the first error among the replies."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return self.read(replies)

    def read(self, replies: Sequence[Any]) -> Any:
        raise TypeError(f"{type(self).__name__} cannot read")

    def give_up(self) -> None:
        """Nobody knows whether the command was carried out: note what has to be undone."""


class DecideErrand(Errand):
    """Rates only: one call, one reply."""

    __slots__ = ("ask", "command", "uid")

    def __init__(self, store: RedisStore, command: Decide) -> None:
        super().__init__(store)
        self.command = command
        self.uid = store.leases.uid  # once: the agent may replace it at any moment
        keys: list[str] = []
        packed = [bytes((command.commit, len(command.charges)))]
        for rule, ident, cost in command.charges:
            plan = rule.plan if rule.plan.algorithm != CALENDAR else store.calendar.plan(rule)
            keys.append(store.key(rule.id, ident))
            flags = rule.count_denied + 2 * (rule.action == "shadow")
            packed.append(PACK(CODES[plan.algorithm], flags, cost, *plan[1:]))
        algorithms = frozenset([rule.plan.algorithm for rule, _, _ in command.charges])
        self.ask = Ask(keys, b"".join(packed), algorithms)
        leases = (self.uid, command.lease or "", store.lease_ttl_ms) if "concurrency" in algorithms else ()
        self.calls.append(together((self.ask,), store.now_arg(), *leases))

    @property
    def travels_alone(self) -> bool:
        """True when the call takes arguments of its own, and so no others along."""
        return "concurrency" in self.ask.algorithms

    def read(self, replies: Sequence[Any]) -> tuple[Answer, ...]:
        (repaired,) = ONE.unpack_from(replies[-1])
        if repaired == TOO_OLD:
            self.store.calendar.learn(int(ONE.unpack_from(replies[-1], ONE.size)[0]))
            raise AskAgain
        if repaired and self.store.complaints.due("repaired"):
            logger.warning("replaced %d corrupt or foreign values in Redis", repaired)
        return tuple(Answer(*map(int, told)) for told in TOLD.iter_unpack(replies[-1][ONE.size :]))


class LeaseErrand(DecideErrand):
    """A lease is asked for: the first time under a key, this process says beforehand what it will hold."""

    __slots__ = ("pairs", "unannounced")

    def __init__(self, store: RedisStore, command: Decide) -> None:
        super().__init__(store, command)
        leases = store.leases
        self.pairs = [(charge.rule.id, charge.ident) for charge in command.charges if charge.rule.is_concurrency]
        self.unannounced = [pair for pair in self.pairs if not leases.is_announced(*pair)]
        if self.unannounced:
            self.calls.insert(0, self._announcement())

    def read(self, replies: Sequence[Any]) -> tuple[Answer, ...]:
        leases, lease = self.store.leases, self.command.lease or ""
        answers = super().read(replies)
        if self.unannounced:
            leases.confirm(self.uid, replies[0], *self.unannounced)
        if all(map(passes, self.command.charges, answers)):
            for pair in self.pairs:
                leases.hold(*pair, lease, self.uid)
        return answers

    def give_up(self) -> None:
        for pair in self.pairs:
            self.store.leases.owe(*pair, self.command.lease or "", self.uid)

    def _announcement(self) -> Call:
        store, uid = self.store, self.uid
        keys = [store.process_key(name) for name in ("live", "meta", f"held:{uid}")]
        indexes = [store.key(*pair) for pair in self.unannounced]
        args = [store.now_arg(), uid, store.leases.introduce(uid), store.lease_ttl_ms, *indexes]
        return Call(script("announce"), keys, args)


class ForgetErrand(Errand):
    """Rates become full again."""

    __slots__ = ()

    def __init__(self, store: RedisStore, command: Forget) -> None:
        super().__init__(store)
        if store.denials is not None:
            store.denials.clear()
        rates = [charge for charge in command.charges if not charge.rule.is_concurrency]
        self.calls.append(Call(script("forget"), [store.key(rule.id, ident) for rule, ident, _ in rates], ()))

    def read(self, replies: Sequence[Any]) -> int:
        return int(replies[0])


class ReleaseErrand(Errand):
    """A lease goes back; it is owed until Redis has confirmed it, so no failure and no cancellation loses it."""

    __slots__ = ("owed",)

    def __init__(self, store: RedisStore, command: Release) -> None:
        super().__init__(store)
        self.owed = [owed for pair in command.holds for owed in store.leases.let_go(*pair, command.lease)]
        for one in self.owed:
            self.calls.append(Call(script("release"), (store.key(one.rule_id, one.ident),), (one.uid, one.lease)))

    def read(self, replies: Sequence[Any]) -> None:
        self.store.leases.settle(*self.owed)


def _failure(store: RedisStore, error: Exception) -> StoreError:
    cause = cause_of(error)
    if cause in COUNTED:
        if store.breaker.failed():
            logger.warning("Redis does not answer (%s: %r); failure policies decide until it does", cause, error)
    else:
        store.breaker.abandoned()
        if cause is not Cause.POOL and store.complaints.due(cause):
            logger.error("Redis refuses a script (%s: %r)", cause, error)
    return StoreError(cause, str(error) or type(error).__name__)
