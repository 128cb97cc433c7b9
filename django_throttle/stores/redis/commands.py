"""Commands to Redis: the calls that each sends, what it makes of the replies, and what a failure leaves to undo."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct, unpack
from typing import Any, Final, Generic, NamedTuple, TypeVar

from redis.exceptions import InvalidResponse

from django_throttle.core.algorithms import CounterParams
from django_throttle.core.commands import (
    Answer,
    Answers,
    CallNext,
    Charge,
    Charges,
    ClaimRun,
    Correct,
    CountMembers,
    Decide,
    Enlist,
    Entry,
    Pause,
    Release,
    Reset,
    SetDedupKeys,
    passes,
    pause_id,
)
from django_throttle.core.key import key_root
from django_throttle.core.ledger import entries_of
from django_throttle.exceptions import Cause, RepeatCommand, StoreError
from django_throttle.local.freed_slots import freed_slots
from django_throttle.stores.redis.batch import Announcement, BatchFailed, PendingDecision, announce_call
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.failures import LoopBlocked, cause_of
from django_throttle.stores.redis.packing import (
    JoinedCall,
    ReleaseCall,
    as_sent,
    in_order,
    packed_lease,
    packing_of,
    record_head,
    repack,
)
from django_throttle.stores.redis.pool import bulk, text
from django_throttle.stores.redis.pool import pack as pack_command
from django_throttle.stores.redis.scripts import OWN_KEY, Script, script
from django_throttle.stores.redis.timeouts import LEAST_SECONDS
from django_throttle.stores.redis.transport import RedisCall, ScriptCall, grouped

T = TypeVar("T")

logger = logging.getLogger("django_throttle")

STALE: Final = -2  # in the place of an answer: a calendar does not hold the time of Redis


class RedisCommand(Generic[T]):
    """One round trip: ``calls`` are sent, ``read`` makes the reply of theirs."""

    __slots__ = ("_read", "calls", "context", "seconds")

    def __init__(
        self,
        context: RedisContext,
        calls: Sequence[ScriptCall] = (),
        read: Callable[[Sequence[Any]], Any] = bool,
        seconds: float | None = None,
    ) -> None:
        self.context, self._read = context, read
        self.calls = list(calls)
        self.seconds = seconds  # less than the transport's own deadline

    def admit(self) -> None:
        """Ask a breaker that is not calm before sending; raises StoreError where it is open."""
        if wait := self.context.breaker.admit():
            raise StoreError(Cause.BREAKER, "the store failed a moment ago", retry_after=wait)

    def note_success(self) -> None:
        """Tell a breaker that is not calm."""
        if lasted := self.context.breaker.succeeded():
            logger.warning("Redis answers again, after %.1f s", lasted)

    def fail(self, error: BaseException) -> None:
        """Tell the breaker of a failure, and raise it as a StoreError; returns where it is to be raised as it is."""
        if isinstance(error, RepeatCommand):
            self.note_success()
            return
        self.give_up()
        if isinstance(error, StoreError):  # of a node that was not asked
            return
        cause = error.error if isinstance(error, BatchFailed) else error
        if isinstance(cause, LoopBlocked) and self.is_idempotent:
            self.context.breaker.inconclusive()
            raise RepeatCommand(Cause.BLOCKED) from error
        if isinstance(error, BatchFailed):
            self.context.breaker.inconclusive()
            raise StoreError(cause_of(error.error), str(error)) from error
        if isinstance(error, Exception):
            raise self.context.note_failure(error) from error
        self.context.breaker.inconclusive()  # cancelled or interrupted: that says nothing about the store

    def finish(self, replies: Sequence[Any]) -> T:
        """The command's reply, by what ``read`` takes; raises the first error among the replies."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        found: T = self.read(replies)
        if not self.context.breaker.is_calm:
            self.note_success()
        return found

    def end(self, reply: T) -> T:
        """The same reply, which several round trips, or a batch, have brought."""
        if not self.context.breaker.is_calm:
            self.note_success()
        return reply

    def read(self, replies: Sequence[Any]) -> Any:
        return self._read(replies)

    @property
    def is_idempotent(self) -> bool:
        """True when executing the command twice is the same as once."""
        return False

    def give_up(self) -> None:
        """Nobody knows whether the command was executed: note what has to be undone."""


class Pipeline(NamedTuple):
    """Calls to be sent together, within ``seconds`` where that is less than the transport's deadline.

    On an event loop ``decisions``, where there are any, are sent in place of the calls, in the loop's batch.
    """

    calls: Sequence[ScriptCall]
    seconds: float | None = None
    decisions: Sequence[PendingDecision] = ()


SendTrip = Callable[[Pipeline], Awaitable[Sequence[Any]]]


class LongCommand(RedisCommand[T], ABC):
    """Takes more than one round trip."""

    __slots__ = ()

    @abstractmethod
    async def reply(self, send: SendTrip) -> T:
        """Make each round trip by ``send``, which returns its replies or raises; return the command's reply."""


class DecideCommand(RedisCommand[Answers], ScriptCall):
    """Rates only: one call, which is this itself, and one reply."""

    __slots__ = ("_packed_keys", "charges", "command", "packed_once", "packing", "size", "uid")

    announcement: Announcement | None = None
    announced: Any = None

    def __init__(self, context: RedisContext, command: Decide) -> None:
        self.context, self.command, self.seconds = context, command, None
        self.packed_once = self._packed_keys = b""
        self.charges = charges = command.charges
        self.uid = context.leases.uid  # once: the agent may replace it at any moment
        rules, idents, costs = charges.key
        self.size = size = len(idents)
        # None where all are of one ident, as of most calls.
        whose = None if size == 1 or idents.count(idents[0]) == size else tuple(map(idents.index, idents))
        self.packing = packing_of(rules, costs, whose, command.commit)

    @property
    def calls(self) -> Sequence[ScriptCall]:  # type: ignore[override]  # prepared by other commands
        return (self,)

    @property
    def script(self) -> Script:
        return script("decide")

    @property
    def derives(self) -> bool:  # type: ignore[override]
        return self.packing.has_lease

    @property
    def follows(self) -> bool:  # type: ignore[override]
        return not self.command.commit

    @property
    def keys(self) -> list[str]:
        idents, context = self.charges.idents, self.context
        return [key_root(context.prefix, idents[at], context.secret) + end for at, end in self.packing.keys]

    @property
    def args(self) -> tuple[Any, ...]:
        return *self.context.clock_args(), *self.own_args()

    def own_args(self) -> tuple[Any, ...]:
        """Return the arguments after the test clock's. Bounds of a calendar are those of now."""
        packing, request = self.packing, self.packing.request
        if packing.has_calendar:
            request = repack(self.context.calendar, packing, self.command)
        lease = (self.uid, self.command.lease or "", self.context.lease_ttl_ms) if packing.has_lease else ()
        return request, *packing.formats, *lease

    def packed_keys(self) -> bytes:
        """The keys as they are sent."""
        if not self._packed_keys:
            self._packed_keys = b"".join([bulk(key.encode()) for key in self.keys])
        return self._packed_keys

    def packed(self) -> bytes:
        if self.packed_once:
            return self.packed_once
        packing = self.packing
        if not packing.is_prepared or self.context.clock:
            return pack_command(self.by_sha())
        self.packed_once = packing.begin + self.packed_keys() + packing.args
        if packing.has_lease:
            self.packed_once += packed_lease(self)
        return self.packed_once

    def joined(self, decisions: Sequence[DecideCommand]) -> ScriptCall:
        return self if len(decisions) == 1 else JoinedCall(decisions)

    def read_joined(self, decisions: Sequence[DecideCommand], reply: bytes) -> list[Answers | RepeatCommand]:
        """All numbers are looked at together, as most often every charge fits, and much is left."""
        repaired, now, *numbers = unpack(f"<{len(reply) // 8}d", reply)
        charges = sum([decision.size for decision in decisions])
        if len(numbers) != 3 * charges:
            raise InvalidResponse(f"{len(reply)} bytes answer {charges} charges")
        if repaired:
            self._note_repaired(int(repaired))
        fits, begin = None if any(numbers[::3]) else True, 0
        answers: list[Answers | RepeatCommand] = []
        for decision in decisions:
            end = begin + 3 * decision.size
            try:
                answers.append(decision._answers(tuple(numbers[begin:end]), now, fits))
            except RepeatCommand as error:
                answers.append(error)
            begin = end
        both = zip(decisions, answers, strict=True)
        self.context.answered.note_all([(each.charges, own) for each, own in both if isinstance(own, Answers)])
        return answers

    def alone(self, answers: Answers) -> bytes:
        numbers, order = answers.numbers, self.packing.order
        return self.packing.reply.pack(0, answers.at, *(as_sent(numbers, order) if order else numbers))

    def read(self, replies: Sequence[Any]) -> Answers:
        return self.read_reply(replies[-1])

    def read_reply(self, reply: bytes) -> Answers:
        """Read the answers of a reply, and note how much is left. Raise RepeatCommand or InvalidResponse."""
        packing = self.packing
        if len(reply) != packing.reply.size:
            raise InvalidResponse(f"{len(reply)} bytes answer {self.size} charges")
        row = packing.reply.unpack(reply)
        repaired, now, numbers = row[0], row[1], row[2:]
        if repaired:
            self._note_repaired(int(repaired))
        is_special = packing.has_calendar or packing.order
        answers = self._answers(numbers, now) if is_special else Answers(numbers, now)
        self.context.answered.note(self.charges, answers)
        return answers

    def _answers(self, numbers: tuple[float, ...], now: float, fits: bool | None = None) -> Answers:
        """Return the answers of these numbers. Raise RepeatCommand if the bounds of a calendar were too old."""
        packing = self.packing
        if packing.has_calendar and numbers[0] == STALE:
            self.context.calendar.learn(int(now))
            raise RepeatCommand
        return Answers(in_order(numbers, packing.order) if packing.order else numbers, now, fits)

    def _note_repaired(self, repaired: int) -> None:
        if self.context.log_throttle.due("repaired"):
            logger.warning("%d invalid counts in Redis begin at 0: does another program use this PREFIX?", repaired)


class LeaseCommand(DecideCommand):
    """A lease is asked for: the first time under a key, this process says beforehand what it will hold."""

    __slots__ = ("announced", "announcement", "pairs", "unannounced")

    def __init__(self, context: RedisContext, command: Decide) -> None:
        super().__init__(context, command)
        leases = context.leases
        self.pairs = self.charges.lease_keys
        self.unannounced = [pair for pair in self.pairs if not leases.is_announced(*pair)]
        self.announcement = self.announced = None
        if self.unannounced:
            indexes = [context.key(*pair) for pair in self.unannounced]
            self.announcement = Announcement(self.uid, leases.introduction_under(self.uid), tuple(indexes))

    @property
    def calls(self) -> Sequence[ScriptCall]:  # type: ignore[override]
        return (self,) if self.announcement is None else (announce_call(self.context, self.announcement), self)

    def read(self, replies: Sequence[Any]) -> Answers:
        return self._held(super().read(replies), replies[0])

    def end(self, answers: Answers) -> Answers:
        if isinstance(self.announced, Exception):
            raise self.announced
        super().end(answers)
        return self._held(answers, self.announced)

    def _held(self, answers: Answers, announced: Any) -> Answers:
        """The same answers, once what they grant is noted; ``announced`` is the reply to the announcement."""
        if self.unannounced:
            self.confirm(announced)
        if answers.fits or all(map(passes, self.command.charges, answers)):
            self.hold()
        return answers

    @property
    def is_idempotent(self) -> bool:
        return len(self.pairs) == self.size  # a lease is known by its id

    def confirm(self, announced: int) -> None:
        self.context.leases.confirm(self.uid, announced, *self.unannounced)

    def hold(self) -> None:
        for pair in self.pairs:
            self.context.leases.hold(*pair, self.command.lease or "", self.uid)

    def give_up(self) -> None:
        for pair in self.pairs:
            self.context.leases.release_uncertain(*pair, self.command.lease or "", self.uid)


SOMEBODY_WAITS: Final = 2  # in the reply to a release: for a slot of the same rule and ident


class ReleaseCommand(RedisCommand[None]):
    """A lease goes back; it is owed until Redis has confirmed it, so no failure and no cancellation loses it."""

    __slots__ = ("owed",)

    def __init__(self, context: RedisContext, command: Release) -> None:
        owed = [owed for pair in command.lease_keys for owed in context.leases.release(*pair, command.lease)]
        self.context, self.seconds, self.owed = context, None, owed
        self.calls = [ReleaseCall(context, *one[:4]) for one in owed]

    def read(self, replies: Sequence[Any]) -> None:
        self.context.leases.confirm_released(*self.owed)
        for owed, reply in zip(self.owed, replies, strict=True):
            if reply >= SOMEBODY_WAITS:
                freed_slots.add((owed.rule_id, owed.ident))

    def hear(self, outcome: list[Any] | BaseException) -> None:
        """It was sent, or could not be, and nobody waits for it."""
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            self.finish(outcome)
        except BaseException as error:  # noqa: BLE001 - that of a loop that ends, too
            with suppress(StoreError):
                self.fail(error)


def reset_command(context: RedisContext, command: Reset) -> RedisCommand[int]:
    """Rates become full again."""
    damped = [charge for charge in command.charges if charge.rule.decided_locally]
    exact = [charge for charge in command.charges if not (charge.rule.decided_locally or charge.rule.holds_slots)]

    def calls(charges: Sequence[Charge], made: Callable[[Sequence[Charge]], RedisCall]) -> list[RedisCall]:
        return [made([charges[at] for at in part]) for part in context.by_slot(charges)] if charges else []

    def reset_damper(charges: Sequence[Charge]) -> RedisCall:
        keys = [context.key(charge.rule.id, charge.ident) for charge in charges]
        return RedisCall(script("reset_damper"), keys, (context.now_arg(),), derives=True)

    def unpause(charges: Sequence[Charge]) -> RedisCall:
        keys = dict.fromkeys(context.key(pause_id(charge.rule.name), charge.ident) for charge in charges)
        return _forget_call(context, dict.fromkeys(keys, b""))

    def forget(charges: Sequence[Charge]) -> RedisCall:
        heads: dict[str, bytes] = {}
        for rule, ident, _ in charges:
            key = context.counter_key(rule, ident)
            is_record = rule.params.wire_id < OWN_KEY
            heads[key] = heads.get(key, b"") + FORGET(record_head(rule.id, rule.params)) if is_record else b""
        return _forget_call(context, heads)

    def read(replies: Sequence[Any]) -> int:
        context.refusal_cache.clear()  # what was refused while this travelled
        for charge in command.charges:
            context.local_limits.forget(charge.rule.id, charge.ident)
        return sum(map(int, replies))

    made = [*calls(exact, forget), *calls(command.charges, unpause), *calls(damped, reset_damper)]
    return RedisCommand(context, made, read)


FORGET: Final = Struct("<d").pack


def _forget_call(context: RedisContext, heads: Mapping[str, bytes]) -> RedisCall:
    """The call that removes these records of values; a key without any is removed as a whole."""
    return RedisCall(script("forget"), list(heads), (context.now_arg(), *heads.values()))


def set_dedup_keys_command(context: RedisContext, command: SetDedupKeys) -> RedisCommand[tuple[bool, ...]]:
    """One call a key, each in the slot of its rule's counter."""
    calls = []
    for once in command.keys:
        key = context.key(f"{once.rule_id}:{once.name}", once.ident)
        calls.append(RedisCall(script("set_dedup_key"), (key,), (context.now_arg(), once.lifetime_us)))
    # The decision that it follows may have taken a whole deadline.
    return RedisCommand(
        context, calls, lambda replies: tuple([reply == 1 for reply in replies]), context.transport.seconds / 2
    )


def pause_command(context: RedisContext, command: Pause) -> RedisCommand[int]:
    """One call, in the slot of the ident's counters."""
    call = RedisCall(
        script("pause"), (context.key(pause_id(command.rule), command.ident),), (context.now_arg(), command.duration_us)
    )
    return RedisCommand(context, [call], lambda replies: int(replies[0]))


def enlist_command(context: RedisContext, command: Enlist) -> RedisCommand[int]:
    args = (command.name, command.entry, command.lifetime_ms, int(command.is_first), command.max_waiting)
    call = RedisCall(script("enlist"), (context.key(command.rule_id, command.ident),), (context.now_arg(), *args), True)
    return RedisCommand(context, [call], lambda replies: int(replies[0]))


def call_next_command(context: RedisContext, command: CallNext) -> RedisCommand[bytes | None]:
    call = RedisCall(script("call_next"), (context.key(command.rule_id, command.ident),), (), True)
    return RedisCommand(context, [call], lambda replies: replies[0])


def claim_command(context: RedisContext, command: ClaimRun) -> RedisCommand[str]:
    args = (command.message, command.lifetime_ms or "")
    call = RedisCall(script("claim"), (context.key("claim", command.name),), args)
    return RedisCommand(context, [call], lambda replies: text(replies[0]))


MEMBERS: Final = "members"  # in the place of a rule's id, which is shorter or longer


def count_command(context: RedisContext, command: CountMembers) -> RedisCommand[int]:
    """One call, within half of the deadline: the decision that it is for has all of its own."""
    args = (context.now_arg(), command.process, round(command.silence * 1_000_000))
    call = RedisCall(script("count_members"), (context.key(MEMBERS, command.group),), args)
    return RedisCommand(context, [call], lambda replies: int(replies[0]), context.transport.seconds / 2)


def tell_calls(context: RedisContext, process: str, counts: Mapping[str, int], seconds: float) -> list[RedisCall]:
    """The calls that say how many members this process has in these groups: one, or one for each slot of a Cluster."""
    members = {context.key(MEMBERS, group): count for group, count in counts.items()}
    first = (context.now_arg(), process, round(seconds * 1000))
    parts = grouped(members, context.transport.slot_of or (lambda _: None))
    return [RedisCall(script("store_members"), keys, (*first, *(members[key] for key in keys))) for keys in parts]


REFUND: Final = Struct("<dBddddddd").pack


def refund_call(context: RedisContext, back: Sequence[Entry], name: str = "") -> RedisCall:
    """The call that gives these back, all of them of one slot; with a name once, however often it is sent."""
    keys, packed = [], []
    for (rule, ident, cost), at, reset, _ in back:
        keys.append(context.counter_key(rule, ident))
        packed.append(
            REFUND(record_head(rule.id, rule.params), rule.params.wire_id, cost, *rule.params.numbers, at, reset)
        )
    once = [context.key(f"back.{name}", back[0].charge.ident)] if name else []
    lasts = [SETTLED_MS] if name else []
    return RedisCall(script("refund"), [*keys, *once], (context.now_arg(), b"".join(packed), *lasts))


LATE: Final = Struct("<dBdddddd").pack


def late_call(
    context: RedisContext,
    due: Sequence[Charge],
    ages: Sequence[int],
    every_params: Sequence[CounterParams],
    once: str,
    lasts_ms: int,
) -> RedisCall:
    """The call that charges these, all of one slot, whatever is left: once, however often it is sent.

    They were made so many microseconds ago. ``once`` is the key by which a second time is known, for ``lasts_ms``.
    """
    keys, packed = [], []
    for (rule, ident, cost), age, params in zip(due, ages, every_params, strict=True):
        keys.append(context.counter_key(rule, ident))
        packed.append(LATE(record_head(rule.id, params), params.wire_id, cost, *params.numbers, age))
    return RedisCall(script("backfill"), (*keys, once), (context.now_arg(), lasts_ms, b"".join(packed)))


SETTLED_MS: Final = 3_600_000  # for which a settlement is known to have been made
MEAN_MS: Final = 7 * 24 * 3_600_000


def correct_command(context: RedisContext, command: Correct) -> RedisCommand[tuple[int, ...]]:
    """All in one pipeline. With a name each call of it changes nothing when it is sent again.

    Without one it is sent once: a failed refund may have been executed, and a second one would give back too much.
    """

    def parts(entries: Sequence[Entry]) -> list[list[Entry]]:
        places = context.by_slot([entry.charge for entry in entries]) if entries else []
        return [[entries[place] for place in part] for part in places]

    calls = [refund_call(context, part, command.name) for part in parts(command.back)]
    for part in parts(command.due):
        once = context.key(f"due.{command.name}", part[0].charge.ident)
        due = [one.charge for one in part]
        every_params = [
            context.calendar.params(rule) if rule.params.needs_calendar else rule.params for rule, _, _ in due
        ]
        calls.append(late_call(context, due, [command.age] * len(due), every_params, once, SETTLED_MS))
    settled = len(calls)
    for rule_id, scope, cost in command.measured:
        calls.append(RedisCall(script("update_mean"), (context.key(f"{rule_id}:mean", scope),), (cost, MEAN_MS)))
    return RedisCommand(context, calls, lambda replies: tuple(map(int, replies[settled:])))


@dataclass(slots=True)
class _SlotPart:
    """What one slot is asked, and its replies."""

    decide: DecideCommand
    places: Sequence[int]
    replies: Sequence[Any] = ()
    undone: int = 0  # calls that refund or release

    @property
    def charges(self) -> Charges:
        return self.decide.command.charges

    def answers(self) -> tuple[Answer, ...]:
        """Empty when the slot has not decided."""
        return self.answers_in(self.replies[-1])

    def answers_in(self, reply: bytes | BaseException) -> tuple[Answer, ...]:
        if not isinstance(reply, BaseException):
            with suppress(RepeatCommand):
                return tuple(self.decide.read_reply(reply))
        return ()

    def is_granted(self) -> bool:
        answers = self.answers()
        return bool(answers) and all(map(passes, self.charges, answers))


class MultiSlotCommand(LongCommand[tuple[Answer, ...]]):
    """Asks every slot; where one refuses, undoes what the others granted, and asks those how things stand."""

    __slots__ = ("_undone", "command", "parts")

    def __init__(self, context: RedisContext, command: Decide, slots: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self.command = command
        self.parts = [_SlotPart(self._part(command, places), places) for places in slots]
        self.calls = [call for part in self.parts for call in part.decide.calls]
        self._undone: list[_SlotPart] = []

    async def reply(self, send: SendTrip) -> tuple[Answer, ...]:
        until = time.monotonic() + (self.seconds or self.context.transport.seconds)
        if undo := self.undo_calls(await send(Pipeline(self.calls, self.seconds, self.decisions))):
            self.note_undone(await send(Pipeline(undo, max(until - time.monotonic(), LEAST_SECONDS))))
        return self.answers()

    @property
    def decisions(self) -> list[PendingDecision]:
        """What travels in an event loop's batch: nothing when a part takes leases, which has arguments of its own."""
        return [] if any(part.decide.derives for part in self.parts) else [part.decide for part in self.parts]

    def undo_calls(self, replies: Sequence[Any]) -> list[ScriptCall]:
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
            if part.answers_in(stands):
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
                if part.decide.unannounced:
                    part.decide.confirm(part.replies[0])
                if self.command.commit and not self._undone and part.is_granted():
                    part.decide.hold()
        return tuple(found[place] for place in sorted(found))

    def give_up(self) -> None:
        for part in self.parts:
            part.decide.give_up()

    def _part(self, command: Decide, places: Sequence[int]) -> DecideCommand:
        charges = tuple(command.charges[place] for place in places)
        leases = command.lease is not None and any(charge.rule.holds_slots for charge in charges)
        made = LeaseCommand if leases else DecideCommand
        return made(self.context, Decide(Charges.of(charges), command.commit, command.lease if leases else None))

    def _undo(self, part: _SlotPart) -> list[ScriptCall]:
        entries = entries_of(part.charges, part.answers())
        back = [entry for entry in entries if not entry.charge.rule.count_denied]
        calls: list[ScriptCall] = [refund_call(self.context, back)] if back else []
        if isinstance(part.decide, LeaseCommand):
            lease = self.command.lease or ""
            calls += [ReleaseCall(self.context, part.decide.uid, *pair, lease) for pair in part.decide.pairs]
        part.undone = len(calls)
        return [*calls, DecideCommand(self.context, Decide(part.charges, commit=False))]
