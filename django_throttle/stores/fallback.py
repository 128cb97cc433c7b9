"""Decisions while Redis is away: each process's share of a limit, charged to Redis afterwards."""

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
from typing import Any, Final, NamedTuple, TypeVar

from django_throttle.core.algorithms import Backfill, CounterParams, State
from django_throttle.core.commands import Answer, Answers, Charge, Charges, Correct, Decide, RuleSet, passes
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.runtime import in_child
from django_throttle.stores.counters import NUMBER, numbers
from django_throttle.stores.memory import SWEEPS, MemoryStore
from django_throttle.stores.redis.commands import LongCommand, Pipeline, RedisCommand, SendPipeline, backfill_call
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.timeouts import MIN_ROUND_TRIP_SECONDS
from django_throttle.stores.redis.transport import LoadingCall, RedisCall

# Counters, and idents that are owed: past that the ones decided longest ago are forgotten. In a flood of new idents
# they take less than half of the 64 MiB by which a process may grow.
T = TypeVar("T")

MAX_OWED: Final = 65_536
BATCH: Final = 200  # idents in one pipeline
OWED: Final = Struct(">IIq")  # of a record: the number for rule and plan, how many numbers its state has, its expiry
# Beats until every process has registered again after Redis lost what it knew.
SETTLING: Final = 2
MAX_KNOWN: Final = 10_000  # budgets of which little was left
MOST_WAITING: Final = 200  # answers that are looked at together


class ProcessCount:
    """How many processes share a limit: as many as beats saw, and at least as many as the site expects.

    The count does not fall while the store fails (``is_failing``), nor within two beats after it lost data: until
    then processes that have not registered again are missing.
    """

    def __init__(self, expected: int, is_failing: Callable[[], bool]) -> None:
        self._expected = max(1, expected)
        self._is_failing = is_failing
        self._settling = 0
        self.sharing = self._expected  # the number by which a limit is divided
        self._seen = 1

    @property
    def seen(self) -> int:
        return self._seen

    @seen.setter
    def seen(self, alive: int) -> None:
        self._seen, self.sharing = alive, max(alive, self._expected)

    def note(self, alive: int, *, lost: bool) -> None:
        """A beat saw ``alive`` processes; ``lost`` when the store has lost data."""
        if lost or self._is_failing():
            self._settling = SETTLING
        if alive >= self.seen or not self._settling:
            self.seen = alive
        else:
            self._settling -= 1


class LastRemaining(NamedTuple):
    """What Redis last said of a budget: ``units``, and until when no more comes back (monotonic seconds)."""

    units: int
    until: float


@lru_cache(maxsize=1024)
def floors(rules: RuleSet, processes: int) -> tuple[float, ...]:
    """What is to be left under each of these rules for ``processes`` to need to know nothing; no queue has so much."""
    known = [rule if rule.rate and rule.on_store_failure == "local" else None for rule in rules.rules]
    return tuple([0.0 if one is None else inf if one.is_queue else one.params.limit / processes for one in known])


class Remaining:
    """The budgets of which Redis last said that less is left than a process admits by itself, and queues.

    A call adds one tuple to a list, and is looked at with MOST_WAITING others. Empty after a fork.
    """

    def __init__(self, processes: ProcessCount) -> None:
        self._processes = processes
        self._forget()
        in_child(self, type(self)._forget)

    def _forget(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[Charges, Answers, float]] = []
        self._noted: dict[tuple[RuleSet, tuple[str, ...]], tuple[Answers, float]] = {}
        self._left: dict[tuple[str, str], LastRemaining] | None = None  # by rule and ident; None once more was noted

    def note(self, charges: Charges, answers: Answers) -> None:
        """Remember what Redis has answered."""
        waiting = self._waiting
        waiting.append((charges, answers, time.monotonic()))
        if len(waiting) >= MOST_WAITING:
            self._look()

    def note_all(self, calls: Sequence[tuple[Charges, Answers]]) -> None:
        """The same for several calls."""
        now = time.monotonic()
        self._waiting += [(charges, answers, now) for charges, answers in calls]
        if len(self._waiting) >= MOST_WAITING:
            self._look()

    def _look(self) -> None:
        """Keep of what waits, which other threads may add to meanwhile, what a process has to know."""
        with self._lock:
            calls = self._waiting[: len(self._waiting)]
            del self._waiting[: len(calls)]
            noted, processes = self._noted, self._processes.sharing
            for charges, answers, at in calls:
                rules = charges.rules
                if any(map(lt, answers.numbers[1::3], floors(rules, processes))):
                    noted[rules, charges.idents] = answers, at
            self._left = None
            if len(noted) > MAX_KNOWN:
                for oldest in list(islice(noted, len(noted) - MAX_KNOWN + MAX_KNOWN // SWEEPS)):
                    del noted[oldest]

    def of(self, charge: Charge) -> LastRemaining | None:
        """What is left of the budget of a charge; None when nothing is known, or more has come back since."""
        if self._waiting:
            self._look()
        with self._lock:
            if self._left is None:
                self._left = self._read()
            left = self._left.get((charge.rule.id, charge.ident))
        return left if left is not None and left.until > time.monotonic() else None

    def _read(self) -> dict[tuple[str, str], LastRemaining]:
        """What was noted, the latest of each budget: only asked for once Redis fails."""
        found: dict[tuple[str, str], LastRemaining] = {}
        for (rules, idents), (answers, at) in sorted(self._noted.items(), key=lambda one: one[1][1]):
            for rule, ident, answer, floor in zip(
                rules.rules, idents, answers, floors(rules, self._processes.sharing), strict=True
            ):
                if answer.remaining < floor:
                    found[rule.id, ident] = LastRemaining(answer.remaining, at + answer.reset / 1_000_000)
        return found


@lru_cache(maxsize=1024)
def share_of(rule: Rule, processes: int) -> Rule:
    """The rule that one of ``processes`` applies alone; the rule itself where its parts would be too small."""
    try:
        return rule.share(processes)
    except InvalidRule:
        return rule


@lru_cache(maxsize=1024)
def with_limit(rule: Rule, limit: int) -> Rule:
    """The same rule with so much at once, and with no higher rate."""
    if rule.rate is None:
        return rule
    return rule.with_rates((replace(rule.rate, limit=min(limit, rule.rate.limit)),), limit if rule.burst else None)


class Admitted(NamedTuple):
    """What was admitted under a rule and is not charged yet: a state of the share's algorithm, until it expires."""

    rule: Rule
    params: CounterParams
    state: State
    expires: int


class AllAdmitted(dict[str, bytes]):
    """What was admitted of each ident, in records of bytes: a number for rule and plan, the state, when it expires.

    Of at most ``most`` idents; past that those admitted longest ago are forgotten, a few at a time. A dictionary, as
    each call to Redis asks whether it is empty.
    """

    __slots__ = ("_most", "_numbers", "_rules")

    def __init__(self, most: int = MAX_OWED) -> None:
        super().__init__()
        self._most = most
        self._rules: list[tuple[Rule, CounterParams]] = []
        self._numbers: dict[tuple[Rule, CounterParams], int] = {}

    def of(self, ident: str) -> list[Admitted]:
        """What was admitted of an ident, by rule."""
        record, at, found = self.get(ident, b""), 0, []
        while at < len(record):
            number, length, expires = OWED.unpack_from(record, at)
            state = numbers(length).unpack_from(record, at + OWED.size)
            rule, params = self._rules[number]
            found.append(Admitted(rule, params, state, expires))
            at += OWED.size + NUMBER * length
        return found

    def put(self, ident: str, admitted: Iterable[Admitted]) -> None:
        """Replace all that was admitted of an ident."""
        self[ident] = b"".join(map(self._pack, admitted))
        if len(self) > self._most:
            for oldest in list(islice(self, -(-self._most // SWEEPS))):
                del self[oldest]

    def drop(self, ident: str) -> None:
        self.pop(ident, None)
        if not self:
            self._rules, self._numbers = [], {}

    def _pack(self, one: Admitted) -> bytes:
        rule = one.rule, one.params
        if rule not in self._numbers:
            self._numbers[rule] = len(self._rules)
            self._rules.append(rule)
        return OWED.pack(self._numbers[rule], len(one.state), one.expires) + numbers(len(one.state)).pack(*one.state)


class LateCharge(NamedTuple):
    """Calls admitted here: the rule, the cost, and the time by the local store's clock, in microseconds."""

    rule: Rule
    cost: int
    at: int


class LateCharges(NamedTuple):
    """What Redis is yet to be charged for one ident; by ``name`` it recognizes a repetition."""

    ident: str
    name: str
    charges: tuple[LateCharge, ...]


class Fallback:
    """The policy ``local``: this process's share of each limit, or what the store said is left where that is less.

    What it admits is owed to Redis: charged, once, before Redis decides anything for the same ident again.
    """

    def __init__(self, context: RedisContext, processes: ProcessCount, remaining: Remaining) -> None:
        self.context, self.processes, self.remaining = context, processes, remaining
        self.local = MemoryStore(leases=context.leases, max_entries=MAX_OWED)
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        """A forked child owes nothing: its parent charges what was admitted before the fork."""
        self._lock = Lock()
        self.admitted = AllAdmitted()
        self.unconfirmed: dict[str, LateCharges] = {}

    def decide(self, command: Decide) -> tuple[Answer, ...]:
        """Decide by this process's shares alone."""
        left = list(map(self._left, command.charges))
        charges = tuple(map(self._shared, command.charges, left))
        spent = any(
            one is not None and one.units < charge.cost and not charge.rule.is_shadow
            for charge, one in zip(charges, left, strict=True)
        )
        local = Decide(Charges.of(charges), command.commit and not spent, command.lease)
        answers: tuple[Answer, ...] = self.local.execute(local)
        if local.commit and all(map(passes, charges, answers)):
            self._owe(command.charges, charges)
            slower = map(_slower, command.charges, charges)
            answers = tuple([one._replace(reset=one.reset - more) for one, more in zip(answers, slower, strict=True)])
        return tuple(map(_bounded, charges, left, answers))

    def correct(self, command: Correct) -> tuple[int, ...]:
        """Correct what was decided here: what is due is owed to Redis too.

        What goes back does so only here: Redis may have been charged for it by now.
        """
        shares = [_fitting(self._share(entry.charge)) for entry in command.back]
        back = [
            entry._replace(charge=share, reset=entry.reset + _slower(entry.charge, share))
            for entry, share in zip(command.back, shares, strict=True)
        ]
        due = [entry._replace(charge=self._share(entry.charge)) for entry in command.due]
        self._owe([entry.charge for entry in command.due], [entry.charge for entry in due])
        means: tuple[int, ...] = self.local.execute(replace(command, back=tuple(back), due=tuple(due)))
        return means

    def late(self, idents: Iterable[str]) -> list[LateCharges]:
        """What Redis is to be charged for these idents; after that, perhaps more of it."""
        return [found for ident in idents if (found := self._late_charges(ident))]

    def call(self, late: LateCharges) -> RedisCall:
        """The script call that charges this, once however often it is sent."""
        now, lasts = self._now(), max(round((one.rule.window or 0) * 2000) for one in late.charges)
        due = [Charge(one.rule, late.ident, one.cost) for one in late.charges]
        once = self.context.key(f"late.{late.name}", late.ident)
        ages = [now - one.at for one in late.charges]
        every_params = [self.local.calendar.params_at(one.rule, now) for one in late.charges]
        return backfill_call(self.context, due, ages, every_params, once, lasts + 60_000)

    def confirm(self, late: Sequence[LateCharges], replies: Sequence[Any]) -> None:
        """Redis has charged these; raises the first error among the replies."""
        self.note_confirmed(late, replies)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def note_confirmed(self, late: Sequence[LateCharges], replies: Sequence[Any]) -> None:
        """The same without raising: what failed is still owed."""
        with self._lock:  # several calls of an ident may have charged the same
            for one, reply in zip(late, replies, strict=True):
                if not isinstance(reply, Exception) and self.unconfirmed.get(one.ident) is one:
                    del self.unconfirmed[one.ident]

    def flush(self) -> None:
        """Charge all that is owed, in batches. Raises StoreError."""
        while self.unconfirmed or self.admitted:
            owing = dict.fromkeys(islice(chain(list(self.unconfirmed), list(self.admitted)), BATCH))
            late = self.late(owing)
            self.confirm(late, self.context.send(list(map(self.call, late))))

    def owes(self, charges: Sequence[Charge]) -> bool:
        """Whether something is owed for any of the idents of these charges."""
        admitted, unconfirmed = self.admitted, self.unconfirmed
        return any(charge.ident in admitted or charge.ident in unconfirmed for charge in charges)

    def _left(self, charge: Charge) -> LastRemaining | None:
        """What the store said was left; a queue goes on after the turns that it has given, and then knows by itself."""
        left = self.remaining.of(charge)
        if left is None or not charge.rule.is_queue:
            return left
        share = self._share(charge)
        [here] = self.local.execute(Decide(Charges.of((share,)), commit=False))
        missing = (left.until - time.monotonic()) * 1_000_000 - here.reset
        units = min(here.remaining, ceil(missing / share.rule.params.drain_us(1)))
        if units > 0:
            self.local.execute(Decide(Charges.of((share._replace(cost=units),))))
        return None

    def _share(self, charge: Charge) -> Charge:
        return charge._replace(rule=share_of(charge.rule, self.processes.sharing))

    def _shared(self, charge: Charge, left: LastRemaining | None) -> Charge:
        charge = _fitting(self._share(charge))
        share = charge.rule
        if left is not None and share.factor <= left.units < share.params.limit:
            share = with_limit(share, left.units)
        return charge._replace(rule=share)

    def _owe(self, charges: Sequence[Charge], shares: Sequence[Charge]) -> None:
        with self._lock:
            for charge, share in zip(charges, shares, strict=True):
                if charge.cost and not charge.rule.holds_slots:
                    self._admit(charge, share.rule)

    def _admit(self, charge: Charge, share: Rule) -> None:
        rule, ident, cost = charge
        now, known = self._now(), {one.rule.id: one for one in self.admitted.of(ident)}
        params = self.local.calendar.params_at(share, now)
        before = known.get(rule.id)
        state = before.state if before and before.expires > now else None
        if stored := params.charge_late(state, now, Backfill(cost, now)):
            known[rule.id] = Admitted(rule, params, stored.state, now + stored.lifetime_us)
            self.admitted.put(ident, known.values())

    def _late_charges(self, ident: str) -> LateCharges | None:
        """What is owed: while a part of it is not confirmed that part, under the same name."""
        with self._lock:
            if ident not in self.unconfirmed:
                charges = tuple(self._charges(ident))
                if charges:  # seen by others here before it is not seen there
                    self.unconfirmed[ident] = LateCharges(ident, secrets.token_urlsafe(9), charges)
                self.admitted.drop(ident)
            return self.unconfirmed.get(ident)

    def _charges(self, ident: str) -> Iterator[LateCharge]:
        now = self._now()
        for rule, params, state, expires in self.admitted.of(ident):
            for cost, at in params.late_charges(state, now) if expires > now else ():
                if cost:
                    yield LateCharge(rule, cost, at)

    def _now(self) -> int:
        return round(self.local.clock() * 1_000_000)


class LateCommand(LongCommand[T]):
    """A decision for idents of whom something is owed: that is charged first, within the same deadline."""

    __slots__ = ("_until", "command", "fallback", "idents")

    def __init__(self, fallback: Fallback, idents: Iterable[str], command: RedisCommand[T]) -> None:
        super().__init__(fallback.context)
        self.fallback, self.idents, self.command = fallback, tuple(idents), command
        self.calls = command.calls
        self._until = time.monotonic() + self.context.transport.seconds

    async def reply(self, send: SendPipeline) -> T:
        """Charge it in the first round trip of the decision: for a Redis far away one more is too long."""
        fallback, command = self.fallback, self.command
        while (late := fallback.late(self.idents)) and any(map(fallback.admitted.get, self.idents)):
            fallback.confirm(late, await send(Pipeline(list(map(fallback.call, late)), self._rest())))

        async def send_late(trip: Pipeline) -> Sequence[Any]:
            if not late:
                return await send(trip)
            due, number = (
                [LoadingCall(call.script, call.keys, call.args) for call in map(fallback.call, late)],
                len(late),
            )
            replies = await send(Pipeline([*due, *trip.calls], trip.seconds))
            fallback.note_confirmed(late, replies[:number])
            late.clear()
            return replies[number:]

        command.seconds = self._rest()
        if isinstance(command, LongCommand):
            reply: T = await command.reply(send_late)
            return reply
        return command.finish(await send_late(Pipeline(self.calls, command.seconds)))

    @property
    def is_idempotent(self) -> bool:
        return self.command.is_idempotent

    def on_unknown_outcome(self) -> None:
        self.command.on_unknown_outcome()

    def _rest(self) -> float:
        return max(self._until - time.monotonic(), MIN_ROUND_TRIP_SECONDS)


def _fitting(charge: Charge) -> Charge:
    """The charge; of a reserve no more than a share allows at once, which would refuse every call."""
    return charge._replace(cost=min(charge.cost, charge.rule.params.limit)) if charge.rule.is_measured else charge


def _slower(charge: Charge, share: Charge) -> int:
    """By how many microseconds a queue's share takes longer for this cost: a turn is reckoned by the whole rule."""
    if not charge.rule.is_queue:
        return 0
    return ceil(share.rule.params.drain_us(charge.cost)) - ceil(charge.rule.params.drain_us(charge.cost))


def _bounded(charge: Charge, left: LastRemaining | None, answer: Answer) -> Answer:
    """The local answer, by what the store said was left."""
    if left is None or left.units >= charge.cost:
        return answer
    wait = max(1, round((left.until - time.monotonic()) * 1_000_000))
    return answer._replace(retry=max(answer.retry, wait), remaining=min(answer.remaining, left.units), reset=wait)
