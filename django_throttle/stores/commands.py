"""Commands to Redis: the calls that each sends, what it makes of the replies, and what a failure leaves to undo."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from redis.exceptions import InvalidResponse

from django_throttle.connections.leases import HeldUnder, Leases
from django_throttle.core.algorithms import Plan
from django_throttle.core.algorithms.concurrency import Concurrency
from django_throttle.core.algorithms.fixed_window import CalendarWindow
from django_throttle.core.commands import (
    Answer,
    Charge,
    CountMembers,
    Decide,
    PastCharge,
    Refund,
    Release,
    Reset,
    SetMarks,
    passes,
)
from django_throttle.core.key import key_root
from django_throttle.core.rate import TOO_COSTLY
from django_throttle.core.rule import Rule
from django_throttle.exceptions import Cause, RepeatCommand, StoreError
from django_throttle.store_time import Calendar
from django_throttle.stores.batch import Announcement, Ask, BatchFailed
from django_throttle.stores.context import RedisContext
from django_throttle.stores.failures import LoopBlocked, cause_of
from django_throttle.stores.transport import Call, grouped, script

logger = logging.getLogger("django_throttle")

TOO_OLD: Final = -1
HEAD: Final = Struct(">dd")
ANSWER: Final = Struct(">ddd")
MARKS: Final = Struct(">BH").pack
PACK: Final = Struct(">BBddddd").pack


class RedisCommand:
    """One round trip: ``calls`` are sent, ``read`` makes the reply of theirs.

    As a context manager it asks the breaker before, reports to it after, and turns every failure into a StoreError.
    """

    __slots__ = ("_read", "calls", "context", "seconds")

    def __init__(
        self,
        context: RedisContext,
        calls: Sequence[Call] = (),
        read: Callable[[Sequence[Any]], Any] = bool,
        seconds: float | None = None,
    ) -> None:
        self.context, self._read = context, read
        self.calls = list(calls)
        self.seconds = seconds  # less than the transport's own deadline

    def __enter__(self) -> None:
        breaker = self.context.breaker
        if not breaker.is_calm and (wait := breaker.admit()):
            raise StoreError(Cause.BREAKER, "the store failed a moment ago", retry_after=wait)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, RepeatCommand):
            breaker = self.context.breaker
            if not breaker.is_calm and (lasted := breaker.succeeded()):
                logger.warning("Redis answers again, after %.1f s", lasted)
            return
        self.give_up()
        if isinstance(error, StoreError):  # of a node that was not asked
            return
        cause = error.error if isinstance(error, BatchFailed) else error
        if isinstance(cause, LoopBlocked) and self.is_idempotent:
            self.context.breaker.abandoned()
            raise RepeatCommand(Cause.BLOCKED) from error
        if isinstance(error, BatchFailed):
            self.context.breaker.abandoned()
            raise StoreError(cause_of(error.error), str(error)) from error
        if isinstance(error, Exception):
            raise self.context.note_failure(error) from error
        self.context.breaker.abandoned()  # cancelled or interrupted: that says nothing about the store

    def finish(self, replies: Sequence[Any]) -> Any:
        """The command's reply; raises the first error among the replies."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return self.read(replies)

    def read(self, replies: Sequence[Any]) -> Any:
        return self._read(replies)

    @property
    def is_idempotent(self) -> bool:
        """True when executing the command twice is the same as once."""
        return False

    def give_up(self) -> None:
        """Nobody knows whether the command was executed: note what has to be undone."""


class RoundTrip(NamedTuple):
    """Calls to be sent together, within ``seconds`` where that is less than the transport's deadline.

    On an event loop ``asks``, where there are any, are sent in place of the calls, in the loop's batch.
    """

    calls: Sequence[Call]
    seconds: float | None = None
    asks: Sequence[Ask] = ()


class LongCommand(RedisCommand, ABC):
    """Takes more than one round trip."""

    __slots__ = ()

    @abstractmethod
    def steps(self) -> Generator[RoundTrip, Sequence[Any], Any]:
        """Yields each round trip and receives its replies, or the error; returns the command's reply."""


class DecideCommand(RedisCommand):
    """Rates only: one call, one reply."""

    __slots__ = ("ask", "command", "uid")

    def __init__(self, context: RedisContext, command: Decide) -> None:
        super().__init__(context)
        self.command = command
        self.uid = context.leases.uid  # once: the agent may replace it at any moment
        keys: list[str] = []
        packed = [b""]
        whose = root = ""
        for rule, ident, cost in command.charges:
            whose, root = (whose, root) if ident == whose else (ident, key_root(context.prefix, ident, context.secret))
            keys.append(root + rule.id)
            packed.append(pack(rule.plan, rule, cost))
        plans = frozenset([type(charge.rule.plan) for charge in command.charges])
        own = (self.uid, command.lease or "", context.lease_ttl_ms) if Concurrency in plans else ()
        packed[0] = marks = MARKS(command.commit + 2 * bool(own), len(keys))
        repack = partial(_repack, context.calendar, marks, command) if CalendarWindow in plans else None
        self.ask = Ask(keys, b"".join(packed), plans, own, repack=repack)
        now = context.now_arg() if context.clock else ""
        args = (now, repack() if repack else self.ask.packed, *own)
        self.calls.append(Call(script("decide", plans), keys, args, bool(own)))

    def read(self, replies: Sequence[Any]) -> tuple[Answer, ...]:
        repaired, now = HEAD.unpack_from(replies[-1])
        if repaired == TOO_OLD:
            self.context.calendar.learn(int(now))
            raise RepeatCommand
        if len(replies[-1]) != HEAD.size + ANSWER.size * len(self.ask.keys):
            raise InvalidResponse(f"{len(replies[-1])} bytes answer {len(self.ask.keys)} charges")
        if repaired and self.context.log_throttle.due("repaired"):
            logger.warning("%d invalid counts in Redis begin at 0: does another program use this PREFIX?", repaired)
        at = int(now)
        numbers = ANSWER.iter_unpack(replies[-1][HEAD.size :])
        answers = tuple([Answer(int(a), int(b), int(c), at) for a, b, c in numbers])
        self.context.remaining.note(self.command.charges, answers)
        return answers


def pack(plan: Plan, rule: Rule, cost: int) -> bytes:
    """A charge as the script reads it, see decide.lua; ``plan`` is the rule's, or has a calendar's bounds."""
    flags = rule.count_denied + 2 * rule.is_shadow
    return PACK(plan.code, flags, min(cost, TOO_COSTLY), *plan.numbers)


def _repack(calendar: Calendar, marks: bytes, command: Decide) -> bytes:
    """A call by what the calendar says now."""
    packed = [marks]
    for rule, _, cost in command.charges:
        plan = calendar.plan(rule) if rule.plan.needs_calendar else rule.plan
        packed.append(pack(plan, rule, cost))
    return b"".join(packed)


class LeaseCommand(DecideCommand):
    """A lease is asked for: the first time under a key, this process says beforehand what it will hold."""

    __slots__ = ("pairs", "unannounced")

    def __init__(self, context: RedisContext, command: Decide) -> None:
        super().__init__(context, command)
        leases = context.leases
        self.pairs = [(charge.rule.id, charge.ident) for charge in command.charges if charge.rule.is_concurrency]
        self.unannounced = [pair for pair in self.pairs if not leases.is_announced(*pair)]
        if self.unannounced:
            indexes = tuple([context.key(*pair) for pair in self.unannounced])
            announcement = Announcement(self.uid, leases.introduction_under(self.uid), indexes)
            self.ask = self.ask._replace(announcement=announcement)
            self.calls.insert(0, announce_call(context, announcement))
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
            self.context.leases.confirm(self.uid, replies[0], *self.unannounced)

    def hold(self) -> None:
        for pair in self.pairs:
            self.context.leases.hold(*pair, self.command.lease or "", self.uid)

    def give_up(self) -> None:
        _owe(self.context.leases, self.pairs, self.command.lease or "", self.uid)


def _owe(leases: Leases, pairs: Sequence[HeldUnder], lease: str, uid: str) -> None:
    for pair in pairs:
        leases.release_uncertain(*pair, lease, uid)


class ReleaseCommand(RedisCommand):
    """A lease goes back; it is owed until Redis has confirmed it, so no failure and no cancellation loses it."""

    __slots__ = ("owed",)

    def __init__(self, context: RedisContext, command: Release) -> None:
        super().__init__(context)
        self.owed = [owed for pair in command.holds for owed in context.leases.release(*pair, command.lease)]
        for one in self.owed:
            self.calls.append(release_call(context, *one[:4]))

    def read(self, replies: Sequence[Any]) -> None:
        self.context.leases.confirm_released(*self.owed)


def announce_call(context: RedisContext, one: Announcement) -> Call:
    """The call that tells Redis of this process, and of the indexes under which it may hold leases."""
    keys = [context.process_key(name) for name in ("live", "meta", f"held:{one.uid}")]
    args = [context.now_arg(), one.uid, one.introduction, context.lease_ttl_ms, *one.indexes]
    return Call(script("announce"), keys, args, leads=True)


def release_call(context: RedisContext, uid: str, rule_id: str, ident: str, lease: str) -> Call:
    return Call(script("release"), (context.key(rule_id, ident),), (uid, lease), derives=True)


def reset_command(context: RedisContext, command: Reset) -> RedisCommand:
    """Rates become full again."""
    local = [charge for charge in command.charges if charge.rule.is_local]
    damped = [charge for charge in local if charge.rule.is_damper]
    exact = [charge for charge in command.charges if not (charge.rule.is_damper or charge.rule.is_concurrency)]

    def keys(charges: Sequence[Charge]) -> list[list[str]]:
        places = context.by_slot(charges) if charges else []
        return [[context.key(charges[at].rule.id, charges[at].ident) for at in part] for part in places]

    def read(replies: Sequence[Any]) -> int:
        context.denials.clear()  # what was refused while this travelled
        for charge in local:
            context.local_limits.forget(charge.rule.id, charge.ident)
        return sum(map(int, replies))

    calls = [Call(script("forget"), some, ()) for some in keys(exact)]
    calls += [Call(script("undamp"), some, (context.now_arg(),), derives=True) for some in keys(damped)]
    return RedisCommand(context, calls, read)


def set_marks_command(context: RedisContext, command: SetMarks) -> RedisCommand:
    """One call a mark, each in the slot of its rule's counter."""
    calls = []
    for mark in command.marks:
        key = context.key(f"{mark.rule_id}:{mark.name}", mark.ident)
        calls.append(Call(script("once"), (key,), (context.now_arg(), mark.lasts)))
    # The decision that it follows may have taken a whole deadline.
    return RedisCommand(
        context, calls, lambda replies: tuple([reply == 1 for reply in replies]), context.transport.seconds / 2
    )


MEMBERS: Final = "members"  # in the place of a rule's id, which is shorter or longer


def count_command(context: RedisContext, command: CountMembers) -> RedisCommand:
    """One call, within half of the deadline: the decision that it is for has all of its own."""
    args = (context.now_arg(), command.process, round(command.silence * 1_000_000))
    call = Call(script("group_size"), (context.key(MEMBERS, command.group),), args)
    return RedisCommand(context, [call], lambda replies: int(replies[0]), context.transport.seconds / 2)


def tell_calls(context: RedisContext, process: str, counts: Mapping[str, int], seconds: float) -> list[Call]:
    """The calls that say how many members this process has in these groups: one, or one for each slot of a Cluster."""
    members = {context.key(MEMBERS, group): count for group, count in counts.items()}
    first = (context.now_arg(), process, round(seconds * 1000))
    parts = grouped(members, context.transport.slot_of or (lambda _: None))
    return [Call(script("group_tell"), keys, (*first, *(members[key] for key in keys))) for keys in parts]


REFUND: Final = Struct(">Bddddddd").pack


def refund_command(context: RedisContext, command: Refund) -> RedisCommand:
    """Sent once: a failed refund may have been executed, and a second one would give back too much."""
    paid = command.paid
    parts = context.by_slot([one.charge for one in paid])
    calls = [refund_call(context, [paid[place] for place in places]) for places in parts]
    return RedisCommand(context, calls, lambda replies: sum(map(int, replies)))


def refund_call(context: RedisContext, paid: Sequence[PastCharge]) -> Call:
    """The call that gives these back, all of them of one slot."""
    keys, packed = [], []
    for (rule, ident, cost), at, reset in paid:
        keys.append(context.key(rule.id, ident))
        packed.append(REFUND(rule.plan.code, cost, *rule.plan.numbers, at, reset))
    plans = frozenset([type(one.charge.rule.plan) for one in paid])
    return Call(script("refund", plans), keys, (context.now_arg(), b"".join(packed)))


LEAST_SECONDS: Final = 0.02  # for undoing what only some slots have granted


@dataclass(slots=True)
class _SlotPart:
    """What one slot is asked, and its replies."""

    decide: DecideCommand
    places: Sequence[int]
    replies: Sequence[Any] = ()
    undone: int = 0  # calls that refund or release

    @property
    def charges(self) -> tuple[Charge, ...]:
        return self.decide.command.charges

    def answers(self) -> tuple[Answer, ...]:
        """Empty when the slot has not decided."""
        reply = self.replies[-1]
        if isinstance(reply, BaseException) or HEAD.unpack_from(reply)[0] == TOO_OLD:
            return ()
        return tuple(Answer(*map(int, numbers)) for numbers in ANSWER.iter_unpack(reply[HEAD.size :]))

    def is_granted(self) -> bool:
        answers = self.answers()
        return bool(answers) and all(map(passes, self.charges, answers))


class MultiSlotCommand(LongCommand):
    """Asks every slot; where one refuses, undoes what the others granted, and asks those how things stand."""

    __slots__ = ("_undone", "command", "parts")

    def __init__(self, context: RedisContext, command: Decide, slots: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self.command = command
        self.parts = [_SlotPart(self._part(command, places), places) for places in slots]
        self.calls = [call for part in self.parts for call in part.decide.calls]
        self._undone: list[_SlotPart] = []

    def steps(self) -> Generator[RoundTrip, Sequence[Any], tuple[Answer, ...]]:
        until = time.monotonic() + (self.seconds or self.context.transport.seconds)
        if undo := self.undo_calls((yield RoundTrip(self.calls, self.seconds, self.asks))):
            self.note_undone((yield RoundTrip(undo, max(until - time.monotonic(), LEAST_SECONDS))))
        return self.answers()

    @property
    def asks(self) -> list[Ask]:
        """What travels in an event loop's batch: nothing when a part takes leases, which has arguments of its own."""
        if any(part.decide.ask.own for part in self.parts):
            return []
        return [part.decide.ask for part in self.parts]

    def undo_calls(self, replies: Sequence[Any]) -> list[Call]:
        """Note the replies; returns the calls that undo what was granted, unless every slot has granted."""
        rest = iter(replies)
        for part in self.parts:
            part.replies = [next(rest) for _ in part.decide.calls]
        granted = [part for part in self.parts if part.is_granted()]
        if not self.command.commit or len(granted) == len(self.parts):
            return []
        self._undone = granted
        return [call for part in granted for call in self._undo(part)]

    def note_undone(self, replies: Sequence[Any]) -> None:
        """Note how things stand after that; a lease that may not have been released is owed."""
        rest = iter(replies)
        for part in self._undone:
            *undone, stands = [next(rest) for _ in range(part.undone + 1)]
            if any(isinstance(reply, Exception) for reply in undone):
                part.decide.give_up()
            if isinstance(stands, bytes) and HEAD.unpack_from(stands)[0] != TOO_OLD:
                part.replies = (*part.replies[:-1], stands)

    def answers(self) -> tuple[Answer, ...]:
        """The answers in the order of the charges; raises the first failure."""
        for part in self.parts:
            for reply in part.replies:
                if isinstance(reply, BaseException):
                    raise reply
        found: dict[int, Answer] = {}
        for part in self.parts:
            found.update(zip(part.places, DecideCommand.read(part.decide, part.replies), strict=True))
        for part in self.parts:
            if isinstance(part.decide, LeaseCommand):
                part.decide.confirm(part.replies)
                if self.command.commit and not self._undone and part.is_granted():
                    part.decide.hold()
        return tuple(found[place] for place in sorted(found))

    def give_up(self) -> None:
        for part in self.parts:
            part.decide.give_up()

    def _part(self, command: Decide, places: Sequence[int]) -> DecideCommand:
        charges = tuple(command.charges[place] for place in places)
        leases = command.lease is not None and any(charge.rule.is_concurrency for charge in charges)
        made = LeaseCommand if leases else DecideCommand
        return made(self.context, Decide(charges, command.commit, command.lease if leases else None))

    def _undo(self, part: _SlotPart) -> list[Call]:
        paid = _paid(part)
        calls = [refund_call(self.context, paid)] if paid else []
        if isinstance(part.decide, LeaseCommand):
            lease = self.command.lease or ""
            calls += [release_call(self.context, part.decide.uid, *pair, lease) for pair in part.decide.pairs]
        part.undone = len(calls)
        stands = DecideCommand(self.context, Decide(part.charges, commit=False)).calls
        return calls + [call._replace(follows=True) for call in stands]


def _paid(part: _SlotPart) -> list[PastCharge]:
    """What was charged because all charges of the slot passed."""
    (_, at) = HEAD.unpack_from(part.replies[-1])
    return [
        PastCharge(charge, int(at), answer.reset)
        for charge, answer in zip(part.charges, part.answers(), strict=True)
        if charge.cost and answer.retry == 0 and not charge.rule.count_denied and not charge.rule.is_concurrency
    ]
