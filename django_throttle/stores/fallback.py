"""Decisions while Redis is away: each process decides by its share of a limit, and charges Redis afterwards.

``RedisStore`` uses it for rules whose failure policy is ``local``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from math import ceil, inf
from operator import lt
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple, TypeVar

from django_throttle.core.algorithms import Backfill, CounterParams, State
from django_throttle.core.commands import Answer, Answers, Charge, Charges, Correct, Decide, RuleSet, passes
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.runtime import in_child
from django_throttle.stores.counters import NUMBER_BYTES, numbers
from django_throttle.stores.memory import SWEEPS, MemoryStore
from django_throttle.stores.redis.commands import LongCommand, Pipeline, RedisCommand, SendPipeline, backfill_call
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.timeouts import MIN_ROUND_TRIP_SECONDS
from django_throttle.stores.redis.transport import LoadingCall, RedisCall

T = TypeVar("T")

# In a flood of new idents these, and as many counters, take less than 32 MiB.
MAX_ADMITTED_IDENTS: Final = 65_536
BATCH: Final = 200  # idents in one pipeline
# Header of a record: number of the rule and its parameters, number of the state's numbers, expiry in microseconds.
ADMITTED_RECORD: Final = Struct(">IIq")
SETTLING_BEATS: Final = 2  # until every process has registered again after Redis lost its data
MAX_NOTED_BUDGETS: Final = 10_000
MAX_WAITING_ANSWERS: Final = 200  # that are processed together


class ProcessCount:
    """Number of processes that share a limit: as many as the last beat counted, and at least ``expected``.

    The count does not fall while the store fails, or within two beats after it lost data, because processes that have
    not registered again are missing until then.
    """

    def __init__(self, expected: int, is_failing: Callable[[], bool]) -> None:
        self._expected = max(1, expected)
        self._is_failing = is_failing
        self._settling = 0
        self.divisor = self._expected  #: number by which limits are divided
        self._live_count = 1

    @property
    def live_count(self) -> int:
        return self._live_count

    @live_count.setter
    def live_count(self, alive: int) -> None:
        self._live_count, self.divisor = alive, max(alive, self._expected)

    def note(self, alive: int, *, lost: bool) -> None:
        """Note the number of processes that a beat counted. ``lost`` is True if the store has lost data."""
        if lost or self._is_failing():
            self._settling = SETTLING_BEATS
        if alive >= self.live_count or not self._settling:
            self.live_count = alive
        else:
            self._settling -= 1


class LastRemaining(NamedTuple):
    """Last known ``units`` left of a budget, and the time in monotonic seconds until which no more come back."""

    units: int
    until: float


@lru_cache(maxsize=1024)
def floors(rules: RuleSet, processes: int) -> tuple[float, ...]:
    """Return for each rule the number of units below which the rest of a budget is noted. Queues are always noted."""
    return tuple([_floor(rule, processes) for rule in rules.rules])


def _floor(rule: Rule, processes: int) -> float:
    if not rule.rate or rule.on_store_failure != "local":
        return 0.0
    return inf if rule.is_queue else rule.params.limit / processes


class RemainingBudgets:
    """Budgets with fewer units left than a process' share, by the last answers of Redis, and queues.

    To be fast, a call only appends its answers to a list. MAX_WAITING_ANSWERS of them are processed together. Empty
    after a fork.
    """

    def __init__(self, processes: ProcessCount) -> None:
        self._processes = processes
        self._forget()
        in_child(self, type(self)._forget)

    def _forget(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[Charges, Answers, float]] = []
        self._noted: dict[tuple[RuleSet, tuple[str, ...]], tuple[Answers, float]] = {}
        self._left: dict[tuple[str, str], LastRemaining] | None = None  # by rule id and ident; None if outdated

    def note(self, charges: Charges, answers: Answers) -> None:
        """Note the answers of Redis to a call."""
        waiting = self._waiting
        waiting.append((charges, answers, time.monotonic()))
        if len(waiting) >= MAX_WAITING_ANSWERS:
            self._process_waiting()

    def note_all(self, calls: Sequence[tuple[Charges, Answers]]) -> None:
        """Note the answers of Redis to several calls."""
        now = time.monotonic()
        self._waiting += [(charges, answers, now) for charges, answers in calls]
        if len(self._waiting) >= MAX_WAITING_ANSWERS:
            self._process_waiting()

    def _process_waiting(self) -> None:
        """Keep the waiting answers with little left. Other threads may append to the list meanwhile."""
        with self._lock:
            calls = self._waiting[: len(self._waiting)]
            del self._waiting[: len(calls)]
            noted, processes = self._noted, self._processes.divisor
            for charges, answers, at in calls:
                rules = charges.rules
                if any(map(lt, answers.numbers[1::3], floors(rules, processes))):
                    noted[rules, charges.idents] = answers, at
            self._left = None
            if len(noted) > MAX_NOTED_BUDGETS:
                for oldest in list(islice(noted, len(noted) - MAX_NOTED_BUDGETS + MAX_NOTED_BUDGETS // SWEEPS)):
                    del noted[oldest]

    def of(self, charge: Charge) -> LastRemaining | None:
        """Return the rest of a charge's budget. Return None if it is unknown, or if more has come back since."""
        if self._waiting:
            self._process_waiting()
        with self._lock:
            if self._left is None:
                self._left = self._read()
            left = self._left.get((charge.rule.id, charge.ident))
        return left if left is not None and left.until > time.monotonic() else None

    def _read(self) -> dict[tuple[str, str], LastRemaining]:
        """Return the latest noted rest of each budget. Only needed while Redis fails."""
        left: dict[tuple[str, str], LastRemaining] = {}
        for (rules, idents), (answers, at) in sorted(self._noted.items(), key=lambda entry: entry[1][1]):
            for rule, ident, answer, floor in zip(
                rules.rules, idents, answers, floors(rules, self._processes.divisor), strict=True
            ):
                if answer.remaining < floor:
                    left[rule.id, ident] = LastRemaining(answer.remaining, at + answer.reset / 1_000_000)
        return left


@lru_cache(maxsize=1024)
def share_of(rule: Rule, processes: int) -> Rule:
    """Return a process' share of a rule, or the whole rule if the shares would be too small."""
    try:
        return rule.share(processes)
    except InvalidRule:
        return rule


@lru_cache(maxsize=1024)
def with_limit(rule: Rule, limit: int) -> Rule:
    """Return the rule with this limit of units at once, and with no higher rate."""
    if rule.rate is None:
        return rule
    return rule.with_rates((replace(rule.rate, limit=min(limit, rule.rate.limit)),), limit if rule.burst else None)


class AdmittedState(NamedTuple):
    """State of calls that were admitted under a rule and are not charged yet, by the parameters of its share."""

    rule: Rule
    params: CounterParams
    state: State
    expires: int


class AdmittedStates(dict[str, bytes]):
    """Admitted states by ident, packed as ADMITTED_RECORD and the numbers of the state.

    Beyond ``max_idents`` idents, those admitted longest ago are forgotten, a few at a time. It is a dictionary because
    each call to Redis tests if it is empty, which must be fast.
    """

    __slots__ = ("_max_idents", "_numbers", "_rules")

    def __init__(self, max_idents: int = MAX_ADMITTED_IDENTS) -> None:
        super().__init__()
        self._max_idents = max_idents
        self._rules: list[tuple[Rule, CounterParams]] = []
        self._numbers: dict[tuple[Rule, CounterParams], int] = {}

    def of(self, ident: str) -> list[AdmittedState]:
        """Return the admitted states of an ident."""
        record, at, states = self.get(ident, b""), 0, []
        while at < len(record):
            number, length, expires = ADMITTED_RECORD.unpack_from(record, at)
            state = numbers(length).unpack_from(record, at + ADMITTED_RECORD.size)
            rule, params = self._rules[number]
            states.append(AdmittedState(rule, params, state, expires))
            at += ADMITTED_RECORD.size + NUMBER_BYTES * length
        return states

    def put(self, ident: str, admitted: Iterable[AdmittedState]) -> None:
        """Replace the admitted states of an ident."""
        self[ident] = b"".join(map(self._pack, admitted))
        if len(self) > self._max_idents:
            for oldest in list(islice(self, -(-self._max_idents // SWEEPS))):
                del self[oldest]

    def drop(self, ident: str) -> None:
        self.pop(ident, None)
        if not self:
            self._rules, self._numbers = [], {}

    def _pack(self, admitted: AdmittedState) -> bytes:
        rule, params, state, expires = admitted
        if (rule, params) not in self._numbers:
            self._numbers[rule, params] = len(self._rules)
            self._rules.append((rule, params))
        return ADMITTED_RECORD.pack(self._numbers[rule, params], len(state), expires) + numbers(len(state)).pack(*state)


class BackfillCharge(NamedTuple):
    """Calls that were admitted under a rule: their cost, and their time in microseconds of the local store."""

    rule: Rule
    cost: int
    at: int


class PendingBackfill(NamedTuple):
    """Charges of an ident that Redis has not confirmed. The ``name`` makes a repetition change nothing."""

    ident: str
    name: str
    charges: tuple[BackfillCharge, ...]


class Fallback:
    """Failure policy ``local``: decides by this process' share of each limit, or by the rest of the budget if less.

    Admitted calls are charged to Redis once, before Redis decides anything for the same ident again.
    """

    def __init__(self, context: RedisContext, processes: ProcessCount, remaining: RemainingBudgets) -> None:
        self.context, self.processes, self.remaining = context, processes, remaining
        self.local = MemoryStore(leases=context.leases, max_entries=MAX_ADMITTED_IDENTS)
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        """Start empty in a forked child, as the parent reports charges made before the fork."""
        self._lock = Lock()
        self.admitted = AdmittedStates()
        self.unconfirmed: dict[str, PendingBackfill] = {}

    def decide(self, command: Decide) -> tuple[Answer, ...]:
        """Decide by this process' shares."""
        left = list(map(self._left, command.charges))
        charges = tuple(map(self._with_share, command.charges, left))
        is_spent = any(
            last is not None and last.units < charge.cost and not charge.rule.is_shadow
            for charge, last in zip(charges, left, strict=True)
        )
        local = Decide(Charges.of(charges), command.commit and not is_spent, command.lease)
        answers: tuple[Answer, ...] = self.local.execute(local)
        if local.commit and all(map(passes, charges, answers)):
            self._note_admitted(command.charges, charges)
            extra = map(_extra_queue_us, command.charges, charges)
            answers = tuple(
                [answer._replace(reset=answer.reset - us) for answer, us in zip(answers, extra, strict=True)]
            )
        return tuple(map(_cap_by_remaining, charges, left, answers))

    def correct(self, command: Correct) -> tuple[int, ...]:
        """Correct decisions of this process. Due charges are noted for Redis, too.

        Refunds only apply here, because Redis may have been charged for the calls by now.
        """
        shares = [_fitting(self._share(entry.charge)) for entry in command.refunds]
        back = [
            entry._replace(charge=share, reset=entry.reset + _extra_queue_us(entry.charge, share))
            for entry, share in zip(command.refunds, shares, strict=True)
        ]
        due = [entry._replace(charge=self._share(entry.charge)) for entry in command.charges]
        self._note_admitted([entry.charge for entry in command.charges], [entry.charge for entry in due])
        means: tuple[int, ...] = self.local.execute(replace(command, refunds=tuple(back), charges=tuple(due)))
        return means

    def backfills_for(self, idents: Iterable[str]) -> list[PendingBackfill]:
        """Return the charges of these idents to be confirmed by Redis. There may be more after that."""
        return [backfill for ident in idents if (backfill := self._backfill_of(ident))]

    def call(self, backfill: PendingBackfill) -> RedisCall:
        """Return the script call that charges a backfill. Sending it again changes nothing."""
        now, charges = self._now(), backfill.charges
        marker_ttl_ms = max(round((charge.rule.window or 0) * 2000) for charge in charges) + 60_000  # two windows
        due = [Charge(charge.rule, backfill.ident, charge.cost) for charge in charges]
        marker = self.context.key(f"late.{backfill.name}", backfill.ident)
        ages = [now - charge.at for charge in charges]
        every_params = [self.local.calendar.params_at(charge.rule, now) for charge in charges]
        return backfill_call(self.context, due, ages, every_params, marker, marker_ttl_ms)

    def confirm(self, backfills: Sequence[PendingBackfill], replies: Sequence[object]) -> None:
        """Note the backfills that Redis has charged. Raise the first error among the replies."""
        self.note_confirmed(backfills, replies)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def note_confirmed(self, backfills: Sequence[PendingBackfill], replies: Sequence[object]) -> None:
        """Note the backfills that Redis has charged. Those that failed are sent again."""
        with self._lock:  # several calls of an ident may have charged the same
            for backfill, reply in zip(backfills, replies, strict=True):
                if not isinstance(reply, Exception) and self.unconfirmed.get(backfill.ident) is backfill:
                    del self.unconfirmed[backfill.ident]

    def flush(self) -> None:
        """Charge everything that is not reported yet, in batches. Raise StoreError."""
        while self.unconfirmed or self.admitted:
            idents = dict.fromkeys(islice(chain(list(self.unconfirmed), list(self.admitted)), BATCH))
            backfills = self.backfills_for(idents)
            self.confirm(backfills, self.context.send(list(map(self.call, backfills))))

    def has_unreported(self, charges: Sequence[Charge]) -> bool:
        """Return True if Redis has not been charged for admitted calls of one of these idents."""
        admitted, unconfirmed = self.admitted, self.unconfirmed
        return any(charge.ident in admitted or charge.ident in unconfirmed for charge in charges)

    def _left(self, charge: Charge) -> LastRemaining | None:
        """Return the last known rest of the budget.

        Return None for a queue, after charging the local one for the queue slots that Redis has given.
        """
        left = self.remaining.of(charge)
        if left is None or not charge.rule.is_queue:
            return left
        share = self._share(charge)
        [answer] = self.local.execute(Decide(Charges.of((share,)), commit=False))
        missing_us = (left.until - time.monotonic()) * 1_000_000 - answer.reset
        units = min(answer.remaining, ceil(missing_us / share.rule.params.drain_us(1)))
        if units > 0:
            self.local.execute(Decide(Charges.of((share._replace(cost=units),))))
        return None

    def _share(self, charge: Charge) -> Charge:
        return charge._replace(rule=share_of(charge.rule, self.processes.divisor))

    def _with_share(self, charge: Charge, left: LastRemaining | None) -> Charge:
        charge = _fitting(self._share(charge))
        share = charge.rule
        if left is not None and share.factor <= left.units < share.params.limit:
            share = with_limit(share, left.units)
        return charge._replace(rule=share)

    def _note_admitted(self, charges: Sequence[Charge], shares: Sequence[Charge]) -> None:
        with self._lock:
            for charge, share in zip(charges, shares, strict=True):
                if charge.cost and not charge.rule.holds_slots:
                    self._add_admitted(charge, share.rule)

    def _add_admitted(self, charge: Charge, share: Rule) -> None:
        rule, ident, cost = charge
        now, states = self._now(), {admitted.rule.id: admitted for admitted in self.admitted.of(ident)}
        params = self.local.calendar.params_at(share, now)
        before = states.get(rule.id)
        state = before.state if before and before.expires > now else None
        if stored := params.charge_late(state, now, Backfill(cost, now)):
            states[rule.id] = AdmittedState(rule, params, stored.state, now + stored.lifetime_us)
            self.admitted.put(ident, states.values())

    def _backfill_of(self, ident: str) -> PendingBackfill | None:
        """Return an ident's backfill. While one is unconfirmed, return the same again."""
        with self._lock:
            if ident not in self.unconfirmed:
                charges = tuple(self._charges(ident))
                if charges:  # other threads must see it here before it is dropped there
                    self.unconfirmed[ident] = PendingBackfill(ident, secrets.token_urlsafe(9), charges)
                self.admitted.drop(ident)
            return self.unconfirmed.get(ident)

    def _charges(self, ident: str) -> Iterator[BackfillCharge]:
        now = self._now()
        for rule, params, state, expires in self.admitted.of(ident):
            for cost, at in params.late_charges(state, now) if expires > now else ():
                if cost:
                    yield BackfillCharge(rule, cost, at)

    def _now(self) -> int:
        return round(self.local.clock() * 1_000_000)


class BackfillCommand(LongCommand[T]):
    """A command for idents with unreported charges, which are backfilled first, within the same deadline."""

    __slots__ = ("_until", "command", "fallback", "idents")

    def __init__(self, fallback: Fallback, idents: Iterable[str], command: RedisCommand[T]) -> None:
        super().__init__(fallback.context)
        self.fallback, self.idents, self.command = fallback, tuple(idents), command
        self.calls = command.calls
        self._until = time.monotonic() + self.context.transport.seconds

    async def reply(self, send: SendPipeline) -> T:
        """Send the backfills in the first round trip of the command, as a distant Redis leaves no time for another."""
        fallback, command = self.fallback, self.command
        while (backfills := fallback.backfills_for(self.idents)) and any(map(fallback.admitted.get, self.idents)):
            fallback.confirm(backfills, await send(Pipeline(list(map(fallback.call, backfills)), self._seconds_left())))

        async def send_with_backfills(pipeline: Pipeline) -> Sequence[object]:
            if not backfills:
                return await send(pipeline)
            calls = [LoadingCall(call.script, call.keys, call.args) for call in map(fallback.call, backfills)]
            replies = await send(Pipeline([*calls, *pipeline.calls], pipeline.seconds))
            fallback.note_confirmed(backfills, replies[: len(calls)])
            backfills.clear()
            return replies[len(calls) :]

        command.seconds = self._seconds_left()
        if isinstance(command, LongCommand):
            reply: T = await command.reply(send_with_backfills)
            return reply
        return command.finish(await send_with_backfills(Pipeline(self.calls, command.seconds)))

    @property
    def is_idempotent(self) -> bool:
        return self.command.is_idempotent

    def on_unknown_outcome(self) -> None:
        self.command.on_unknown_outcome()

    def _seconds_left(self) -> float:
        return max(self._until - time.monotonic(), MIN_ROUND_TRIP_SECONDS)


def _fitting(charge: Charge) -> Charge:
    """Return the charge. Reduce a reserve to the limit of the share, which would otherwise refuse every call."""
    return charge._replace(cost=min(charge.cost, charge.rule.params.limit)) if charge.rule.is_measured else charge


def _extra_queue_us(charge: Charge, share: Charge) -> int:
    """Return the microseconds that the share of a queue takes longer than the whole rule, which the answer follows."""
    if not charge.rule.is_queue:
        return 0
    return ceil(share.rule.params.drain_us(charge.cost)) - ceil(charge.rule.params.drain_us(charge.cost))


def _cap_by_remaining(charge: Charge, left: LastRemaining | None, answer: Answer) -> Answer:
    """Cap the local answer by the last known rest of the budget."""
    if left is None or left.units >= charge.cost:
        return answer
    wait = max(1, round((left.until - time.monotonic()) * 1_000_000))
    return answer._replace(retry=max(answer.retry, wait), remaining=min(answer.remaining, left.units), reset=wait)
