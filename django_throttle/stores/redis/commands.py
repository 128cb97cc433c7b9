"""Commands to Redis: the script calls of each store command, and how to read their replies and undo failed ones.

``RedisStore`` makes them from the store commands of ``core.commands``, and sends their calls by a transport.
"""

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
    LedgerEntry,
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
    packed_lease,
    packing_of,
    record_id,
    repack,
    to_charge_order,
    to_sent_order,
)
from django_throttle.stores.redis.pool import bulk, text
from django_throttle.stores.redis.pool import pack as pack_command
from django_throttle.stores.redis.scripts import OWN_KEY, Script, script
from django_throttle.stores.redis.timeouts import MIN_ROUND_TRIP_SECONDS
from django_throttle.stores.redis.transport import RedisCall, ScriptCall, grouped

T = TypeVar("T")

logger = logging.getLogger("django_throttle")

STALE_CALENDAR: Final = -2  # retry of a charge whose calendar bounds do not include the time of Redis


class RedisCommand(Generic[T]):
    """A command of one round trip: ``calls`` are sent, and ``read`` turns their replies into the command's reply.

    ``seconds`` limits the round trip further than the transport's deadline.
    """

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
        self.seconds = seconds

    def admit(self) -> None:
        """Raise StoreError if the breaker is open. Only needed before sending if the breaker is not calm."""
        if wait := self.context.breaker.admit():
            raise StoreError(Cause.BREAKER, "the store failed a moment ago", retry_after=wait)

    def note_success(self) -> None:
        """Report a success to the breaker. Only needed if the breaker is not calm."""
        if lasted := self.context.breaker.succeeded():
            logger.warning("Redis answers again, after %.1f s", lasted)

    def fail(self, error: BaseException) -> None:
        """Report a failure to the breaker, and raise it as a StoreError.

        Return if the caller is to raise the error itself.
        """
        if isinstance(error, RepeatCommand):
            self.note_success()
            return
        self.on_unknown_outcome()
        if isinstance(error, StoreError):  # the breaker of a node was open
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
        self.context.breaker.inconclusive()  # cancelled or interrupted

    def finish(self, replies: Sequence[Any]) -> T:
        """Return the command's reply. Raise the first error among the replies."""
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        result: T = self.read(replies)
        if not self.context.breaker.is_calm:
            self.note_success()
        return result

    def end(self, reply: T) -> T:
        """Return the given reply, of several round trips or a batch, after reporting the success."""
        if not self.context.breaker.is_calm:
            self.note_success()
        return reply

    def read(self, replies: Sequence[Any]) -> Any:
        return self._read(replies)

    @property
    def is_idempotent(self) -> bool:
        """True if executing the command twice has the same effect as once."""
        return False

    def on_unknown_outcome(self) -> None:
        """Note what has to be undone, as the command may or may not have been executed."""


class Pipeline(NamedTuple):
    """Calls to send together.

    ``seconds`` limits the round trip further than the transport's deadline. If there are ``decisions``, an event loop
    sends these in its batch instead of the calls.
    """

    calls: Sequence[ScriptCall]
    seconds: float | None = None
    decisions: Sequence[PendingDecision] = ()


SendPipeline = Callable[[Pipeline], Awaitable[Sequence[Any]]]


class LongCommand(RedisCommand[T], ABC):
    """A command of several round trips."""

    __slots__ = ()

    @abstractmethod
    async def reply(self, send: SendPipeline) -> T:
        """Make the round trips by ``send``, which returns the replies. Return the command's reply."""


class DecideCommand(RedisCommand[Answers], ScriptCall):
    """Decision of rates: one script call, which is the command itself, and one reply."""

    __slots__ = ("_packed_keys", "charges", "command", "packed_cache", "packing", "size", "uid")

    announcement: Announcement | None = None
    announce_reply: Any = None

    def __init__(self, context: RedisContext, command: Decide) -> None:
        self.context, self.command, self.seconds = context, command, None
        self.packed_cache = self._packed_keys = b""
        self.charges = charges = command.charges
        self.uid = context.leases.uid  # read once, as the agent may replace it at any time
        rules, idents, costs = charges.key
        self.size = size = len(idents)
        # None if all have one ident, as in most calls.
        ident_places = None if size == 1 or idents.count(idents[0]) == size else tuple(map(idents.index, idents))
        self.packing = packing_of(rules, costs, ident_places, command.commit)

    @property
    def calls(self) -> Sequence[ScriptCall]:  # type: ignore[override]  # prepared by other commands
        return (self,)

    @property
    def script(self) -> Script:
        return script("decide")

    @property
    def has_derived_keys(self) -> bool:  # type: ignore[override]
        return self.packing.has_lease

    @property
    def goes_last(self) -> bool:  # type: ignore[override]
        return not self.command.commit

    @property
    def keys(self) -> list[str]:
        idents, context = self.charges.idents, self.context
        return [key_root(context.prefix, idents[at], context.secret) + end for at, end in self.packing.keys]

    @property
    def args(self) -> tuple[object, ...]:
        return *self.context.clock_args(), *self.own_args()

    def own_args(self) -> tuple[object, ...]:
        """Return the arguments after the test clock's, with the current bounds of calendars."""
        packing, request = self.packing, self.packing.request
        if packing.has_calendar:
            request = repack(self.context.calendar, packing, self.command)
        lease = (self.uid, self.command.lease or "", self.context.lease_ttl_ms) if packing.has_lease else ()
        return request, *packing.formats, *lease

    def packed_keys(self) -> bytes:
        """Return the keys in RESP."""
        if not self._packed_keys:
            self._packed_keys = b"".join([bulk(key.encode()) for key in self.keys])
        return self._packed_keys

    def packed(self) -> bytes:
        if self.packed_cache:
            return self.packed_cache
        packing = self.packing
        if not packing.is_prepared or self.context.clock:
            return pack_command(self.by_sha())
        self.packed_cache = packing.begin + self.packed_keys() + packing.args
        if packing.has_lease:
            self.packed_cache += packed_lease(self)
        return self.packed_cache

    def join(self, decisions: Sequence[DecideCommand]) -> ScriptCall:
        return self if len(decisions) == 1 else JoinedCall(decisions)

    def read_joined(self, decisions: Sequence[DecideCommand], reply: bytes) -> list[Answers | RepeatCommand]:
        """Return the answers to each decision, or RepeatCommand in their place. Raise InvalidResponse.

        All numbers are tested together, because usually every charge fits.
        """
        repaired, now, *numbers = unpack(f"<{len(reply) // 8}d", reply)
        charges = sum([decision.size for decision in decisions])
        if len(numbers) != 3 * charges:
            raise InvalidResponse(f"{len(reply)} bytes answer {charges} charges")
        if repaired:
            self._note_repaired(int(repaired))
        fits, start = None if any(numbers[::3]) else True, 0
        answers: list[Answers | RepeatCommand] = []
        for decision in decisions:
            end = start + 3 * decision.size
            try:
                answers.append(decision._answers(tuple(numbers[start:end]), now, fits))
            except RepeatCommand as error:
                answers.append(error)
            start = end
        pairs = zip(decisions, answers, strict=True)
        self.context.answer_observer.note_all(
            [(decision.charges, result) for decision, result in pairs if isinstance(result, Answers)]
        )
        return answers

    def pack_reply(self, answers: Answers) -> bytes:
        numbers, order = answers.numbers, self.packing.order
        return self.packing.reply.pack(0, answers.at, *(to_sent_order(numbers, order) if order else numbers))

    def read(self, replies: Sequence[Any]) -> Answers:
        return self.read_reply(replies[-1])

    def read_reply(self, reply: bytes) -> Answers:
        """Return the answers of a reply, and note the remaining budgets. Raise RepeatCommand or InvalidResponse."""
        packing = self.packing
        if len(reply) != packing.reply.size:
            raise InvalidResponse(f"{len(reply)} bytes answer {self.size} charges")
        row = packing.reply.unpack(reply)
        repaired, now, numbers = row[0], row[1], row[2:]
        if repaired:
            self._note_repaired(int(repaired))
        is_special = packing.has_calendar or packing.order
        answers = self._answers(numbers, now) if is_special else Answers(numbers, now)
        self.context.answer_observer.note(self.charges, answers)
        return answers

    def _answers(self, numbers: tuple[float, ...], now: float, fits: bool | None = None) -> Answers:
        """Return the answers with these numbers. Raise RepeatCommand if the bounds of a calendar were too old."""
        packing = self.packing
        if packing.has_calendar and numbers[0] == STALE_CALENDAR:
            self.context.calendar.learn(int(now))
            raise RepeatCommand
        return Answers(to_charge_order(numbers, packing.order) if packing.order else numbers, now, fits)

    def _note_repaired(self, repaired: int) -> None:
        if self.context.log_throttle.try_acquire("repaired"):
            logger.warning("%d invalid counts in Redis were reset: does another program use this PREFIX?", repaired)


class LeaseCommand(DecideCommand):
    """Decision that takes a lease.

    Before the first lease under an index, the process announces that it is going to hold leases there.
    """

    __slots__ = ("announce_reply", "announcement", "pairs", "unannounced")

    def __init__(self, context: RedisContext, command: Decide) -> None:
        super().__init__(context, command)
        leases = context.leases
        self.pairs = self.charges.lease_keys
        self.unannounced = [pair for pair in self.pairs if not leases.is_announced(*pair)]
        self.announcement = self.announce_reply = None
        if self.unannounced:
            indexes = [context.key(*pair) for pair in self.unannounced]
            self.announcement = Announcement(self.uid, leases.introduction_under(self.uid), tuple(indexes))

    @property
    def calls(self) -> Sequence[ScriptCall]:  # type: ignore[override]
        return (self,) if self.announcement is None else (announce_call(self.context, self.announcement), self)

    def read(self, replies: Sequence[Any]) -> Answers:
        return self._hold_granted(super().read(replies), replies[0])

    def end(self, answers: Answers) -> Answers:
        if isinstance(self.announce_reply, Exception):
            raise self.announce_reply
        super().end(answers)
        return self._hold_granted(answers, self.announce_reply)

    def _hold_granted(self, answers: Answers, announce_reply: Any) -> Answers:
        """Return the answers, after noting the announcement's reply and the lease, if it is granted."""
        if self.unannounced:
            self.confirm(announce_reply)
        if answers.fits or all(map(passes, self.command.charges, answers)):
            self.hold()
        return answers

    @property
    def is_idempotent(self) -> bool:
        return len(self.pairs) == self.size  # taking a lease with the same id again changes nothing

    def confirm(self, announce_reply: int) -> None:
        self.context.leases.confirm(self.uid, announce_reply, *self.unannounced)

    def hold(self) -> None:
        for pair in self.pairs:
            self.context.leases.hold(*pair, self.command.lease or "", self.uid)

    def on_unknown_outcome(self) -> None:
        for pair in self.pairs:
            self.context.leases.release_uncertain(*pair, self.command.lease or "", self.uid)


RUN_WAITS: Final = 2  # added to the reply to a release if a run waits for a slot, see release.lua


class ReleaseCommand(RedisCommand[None]):
    """Release of a lease. It stays noted until Redis has confirmed it, so no failure or cancellation loses it."""

    __slots__ = ("leases",)

    def __init__(self, context: RedisContext, command: Release) -> None:
        leases = [lease for pair in command.lease_keys for lease in context.leases.release(*pair, command.lease)]
        self.context, self.seconds, self.leases = context, None, leases
        self.calls = [ReleaseCall(context, *lease[:4]) for lease in leases]

    def read(self, replies: Sequence[Any]) -> None:
        self.context.leases.confirm_released(*self.leases)
        for lease, reply in zip(self.leases, replies, strict=True):
            if reply >= RUN_WAITS:
                freed_slots.add((lease.rule_id, lease.ident))

    def on_outcome(self, outcome: list[Any] | BaseException) -> None:
        """Handle the replies or the error of a release that nobody awaits."""
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            self.finish(outcome)
        except BaseException as error:  # noqa: BLE001 - includes the error of a loop that ends
            with suppress(StoreError):
                self.fail(error)


def reset_command(context: RedisContext, command: Reset) -> RedisCommand[int]:
    """Make the budgets full again, and end the pauses."""
    damped = [charge for charge in command.charges if charge.rule.decided_locally]
    exact = [charge for charge in command.charges if not (charge.rule.decided_locally or charge.rule.holds_slots)]

    def calls(charges: Sequence[Charge], make_call: Callable[[Sequence[Charge]], RedisCall]) -> list[RedisCall]:
        return [make_call([charges[i] for i in part]) for part in context.by_slot(charges)] if charges else []

    def reset_damper(charges: Sequence[Charge]) -> RedisCall:
        keys = [context.key(charge.rule.id, charge.ident) for charge in charges]
        return RedisCall(script("reset_damper"), keys, (context.now_arg(),), has_derived_keys=True)

    def unpause(charges: Sequence[Charge]) -> RedisCall:
        keys = dict.fromkeys(context.key(pause_id(charge.rule.name), charge.ident) for charge in charges)
        return forget_call(context, dict.fromkeys(keys, b""))

    def forget(charges: Sequence[Charge]) -> RedisCall:
        record_ids: dict[str, bytes] = {}
        for rule, ident, _ in charges:
            key = context.counter_key(rule, ident)
            if rule.params.wire_id < OWN_KEY:
                record_ids[key] = record_ids.get(key, b"") + pack_record_id(record_id(rule.id, rule.params))
            else:
                record_ids[key] = b""
        return forget_call(context, record_ids)

    def read(replies: Sequence[Any]) -> int:
        context.refusal_cache.clear()  # of refusals since this was sent
        for charge in command.charges:
            context.local_limits.forget(charge.rule.id, charge.ident)
        return sum(map(int, replies))

    reset_calls = [*calls(exact, forget), *calls(command.charges, unpause), *calls(damped, reset_damper)]
    return RedisCommand(context, reset_calls, read)


pack_record_id: Final = Struct("<d").pack


def forget_call(context: RedisContext, record_ids: Mapping[str, bytes]) -> RedisCall:
    """Return the call that removes the records with these packed ids, by key. Keys without ids are deleted."""
    return RedisCall(script("forget"), list(record_ids), (context.now_arg(), *record_ids.values()))


def set_dedup_keys_command(context: RedisContext, command: SetDedupKeys) -> RedisCommand[tuple[bool, ...]]:
    """Make one call for each key, which is in the slot of its rule's counter."""
    calls = []
    for dedup_key in command.keys:
        key = context.key(f"{dedup_key.rule_id}:{dedup_key.name}", dedup_key.ident)
        calls.append(RedisCall(script("set_dedup_key"), (key,), (context.now_arg(), dedup_key.lifetime_us)))
    # The decision before it may have taken a whole deadline.
    return RedisCommand(
        context, calls, lambda replies: tuple([reply == 1 for reply in replies]), context.transport.seconds / 2
    )


def pause_command(context: RedisContext, command: Pause) -> RedisCommand[int]:
    """Make one call, in the slot of the ident's counters."""
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


MEMBERS_ID: Final = "members"  # instead of a rule id, which has another length


def count_command(context: RedisContext, command: CountMembers) -> RedisCommand[int]:
    """Make one call, within half of the deadline, as the decision after it has a whole deadline."""
    args = (context.now_arg(), command.process, round(command.silence * 1_000_000))
    call = RedisCall(script("count_members"), (context.key(MEMBERS_ID, command.group),), args)
    return RedisCommand(context, [call], lambda replies: int(replies[0]), context.transport.seconds / 2)


def store_members_calls(
    context: RedisContext, process: str, counts: Mapping[str, int], seconds: float
) -> list[RedisCall]:
    """Return the calls that store how many members the process has in groups, for ``seconds``.

    There is one call, or on a Cluster one for each slot.
    """
    members = {context.key(MEMBERS_ID, group): count for group, count in counts.items()}
    args = (context.now_arg(), process, round(seconds * 1000))
    parts = grouped(members, context.transport.slot_of or (lambda _: None))
    return [RedisCall(script("store_members"), keys, (*args, *(members[key] for key in keys))) for keys in parts]


pack_refund: Final = Struct("<dBddddddd").pack


def refund_call(context: RedisContext, back: Sequence[LedgerEntry], name: str = "") -> RedisCall:
    """Return the call that refunds these entries of one slot. With a ``name``, sending it again changes nothing."""
    keys, packed = [], []
    for (rule, ident, cost), at, reset, _ in back:
        keys.append(context.counter_key(rule, ident))
        packed.append(
            pack_refund(record_id(rule.id, rule.params), rule.params.wire_id, cost, *rule.params.numbers, at, reset)
        )
    marker = [context.key(f"back.{name}", back[0].charge.ident)] if name else []
    marker_ttl = [SETTLEMENT_TTL_MS] if name else []
    return RedisCall(script("refund"), [*keys, *marker], (context.now_arg(), b"".join(packed), *marker_ttl))


pack_backfill: Final = Struct("<dBdddddd").pack


def backfill_call(
    context: RedisContext,
    due: Sequence[Charge],
    ages: Sequence[int],
    every_params: Sequence[CounterParams],
    marker: str,
    marker_ttl_ms: int,
) -> RedisCall:
    """Return the call that charges ``due``, all of one slot, even beyond the limits.

    ``ages`` are in microseconds. The key ``marker`` makes the call change nothing if it is sent again within
    ``marker_ttl_ms``.
    """
    keys, packed = [], []
    for (rule, ident, cost), age, params in zip(due, ages, every_params, strict=True):
        keys.append(context.counter_key(rule, ident))
        packed.append(pack_backfill(record_id(rule.id, params), params.wire_id, cost, *params.numbers, age))
    return RedisCall(script("backfill"), (*keys, marker), (context.now_arg(), marker_ttl_ms, b"".join(packed)))


SETTLEMENT_TTL_MS: Final = 3_600_000  # of the marker of a settlement that was made
MEAN_TTL_MS: Final = 7 * 24 * 3_600_000


def correct_command(context: RedisContext, command: Correct) -> RedisCommand[tuple[int, ...]]:
    """Make all calls of a correction, for one pipeline.

    If the correction has a name, calls that are sent again change nothing. Otherwise it is sent once: a failed refund
    may have been executed, and a second one would refund too much.
    """

    def parts(entries: Sequence[LedgerEntry]) -> list[list[LedgerEntry]]:
        places = context.by_slot([entry.charge for entry in entries]) if entries else []
        return [[entries[place] for place in part] for part in places]

    calls = [refund_call(context, part, command.name) for part in parts(command.refunds)]
    for part in parts(command.charges):
        marker = context.key(f"due.{command.name}", part[0].charge.ident)
        due = [entry.charge for entry in part]
        every_params = [
            context.calendar.params(rule) if rule.params.needs_calendar else rule.params for rule, _, _ in due
        ]
        calls.append(backfill_call(context, due, [command.age] * len(due), every_params, marker, SETTLEMENT_TTL_MS))
    correction_count = len(calls)
    for rule_id, scope, cost in command.measured:
        calls.append(RedisCall(script("update_mean"), (context.key(f"{rule_id}:mean", scope),), (cost, MEAN_TTL_MS)))
    return RedisCommand(context, calls, lambda replies: tuple(map(int, replies[correction_count:])))


@dataclass(slots=True)
class _SlotPart:
    """Part of a decision in one slot, and the slot's replies. ``places`` are the indexes of its charges."""

    decide: DecideCommand
    places: Sequence[int]
    replies: Sequence[Any] = ()
    undo_count: int = 0  # number of calls that refund or release

    @property
    def charges(self) -> Charges:
        return self.decide.command.charges

    def answers(self) -> tuple[Answer, ...]:
        """Return the answers, empty if the slot has not decided."""
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
    """Decision in several slots.

    If a slot refuses, undo what the others granted, and read the state of these again.
    """

    __slots__ = ("_undone_parts", "command", "parts")

    def __init__(self, context: RedisContext, command: Decide, slots: Sequence[Sequence[int]]) -> None:
        super().__init__(context)
        self.command = command
        self.parts = [_SlotPart(self._part(command, places), places) for places in slots]
        self.calls = [call for part in self.parts for call in part.decide.calls]
        self._undone_parts: list[_SlotPart] = []

    async def reply(self, send: SendPipeline) -> tuple[Answer, ...]:
        until = time.monotonic() + (self.seconds or self.context.transport.seconds)
        if undo := self.undo_calls(await send(Pipeline(self.calls, self.seconds, self.decisions))):
            self.note_undo_replies(await send(Pipeline(undo, max(until - time.monotonic(), MIN_ROUND_TRIP_SECONDS))))
        return self.answers()

    @property
    def decisions(self) -> list[PendingDecision]:
        """Decisions for an event loop's batch; empty if a part takes leases, which has other arguments."""
        return [] if any(part.decide.has_derived_keys for part in self.parts) else [part.decide for part in self.parts]

    def undo_calls(self, replies: Sequence[Any]) -> list[ScriptCall]:
        """Note the replies. Return the calls that undo granted parts, or none if every slot has granted its part."""
        rest = iter(replies)
        for part in self.parts:
            part.replies = [next(rest) for _ in part.decide.calls]
        granted = [part for part in self.parts if part.is_granted()]
        if not self.command.commit or len(granted) == len(self.parts):
            return []
        self._undone_parts = granted
        return [call for part in granted for call in self._undo(part)]

    def note_undo_replies(self, replies: Sequence[Any]) -> None:
        """Note the replies to ``undo_calls``. A lease whose release failed stays noted for release."""
        rest = iter(replies)
        for part in self._undone_parts:
            *undo_replies, state = [next(rest) for _ in range(part.undo_count + 1)]
            if any(isinstance(reply, Exception) for reply in undo_replies):
                part.decide.on_unknown_outcome()
            if part.answers_in(state):
                part.replies = (*part.replies[:-1], state)

    def answers(self) -> tuple[Answer, ...]:
        """Return the answers in the order of the charges. Raise the first error."""
        for part in self.parts:
            for reply in part.replies:
                if isinstance(reply, BaseException):
                    raise reply
        answers: dict[int, Answer] = {}
        for part in self.parts:
            answers.update(zip(part.places, DecideCommand.read(part.decide, part.replies), strict=True))
        for part in self.parts:
            if isinstance(part.decide, LeaseCommand):
                if part.decide.unannounced:
                    part.decide.confirm(part.replies[0])
                if self.command.commit and not self._undone_parts and part.is_granted():
                    part.decide.hold()
        return tuple(answers[place] for place in sorted(answers))

    def on_unknown_outcome(self) -> None:
        for part in self.parts:
            part.decide.on_unknown_outcome()

    def _part(self, command: Decide, places: Sequence[int]) -> DecideCommand:
        charges = tuple(command.charges[place] for place in places)
        has_leases = command.lease is not None and any(charge.rule.holds_slots for charge in charges)
        command_class = LeaseCommand if has_leases else DecideCommand
        lease = command.lease if has_leases else None
        return command_class(self.context, Decide(Charges.of(charges), command.commit, lease))

    def _undo(self, part: _SlotPart) -> list[ScriptCall]:
        entries = entries_of(part.charges, part.answers())
        back = [entry for entry in entries if not entry.charge.rule.count_denied]
        calls: list[ScriptCall] = [refund_call(self.context, back)] if back else []
        if isinstance(part.decide, LeaseCommand):
            lease = self.command.lease or ""
            calls += [ReleaseCall(self.context, part.decide.uid, *pair, lease) for pair in part.decide.pairs]
        part.undo_count = len(calls)
        return [*calls, DecideCommand(self.context, Decide(part.charges, commit=False))]
