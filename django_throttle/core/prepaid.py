"""Prepaid units: how many a process charges ahead of its calls, until when they may be spent, and what is refunded.

Times are seconds on the caller's monotonic clock, except in answers of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Charges, Decide, LedgerEntry, passes
from django_throttle.core.decide import thresholds_reached
from django_throttle.core.decision import Decision, ThresholdReached, combine_outcomes, outcomes_of, prepaid_decision
from django_throttle.core.rule import Rule

# An order is for the units of AHEAD_SECONDS, but at most MAX_GROWTH times the last order, three quarters of what
# remains, and, with the units already held, the limit divided by LIMIT_DIVISOR: a killed process loses that much.
AHEAD_SECONDS: Final = 0.2
MAX_GROWTH: Final = 16
LIMIT_DIVISOR: Final = 4
DEMAND_SECONDS: Final = 1.0  # age of the last order after which the demand is unknown
# Bounds on the orders for a budget of which little remains.
MAX_ORDER_BURST: Final = 10
ORDERS_A_SECOND: Final = 9
MAX_REFUSAL_SECONDS: Final = 1.0  # how long a refusal is repeated, so that refunds by other processes are noticed


class PrepaidUnits:
    """The units that a command has charged ahead. ``unspent`` of them may be spent ``until`` a time."""

    __slots__ = ("entry", "is_over", "unspent", "until")

    def __init__(self, entry: LedgerEntry, until: float) -> None:
        self.entry, self.until = entry, until
        self.unspent = entry.charge.cost
        self.is_over = False  #: True once the rest is refunded; units returned later are refunded separately

    def take(self, cost: int) -> SpentUnits:
        self.unspent -= cost
        return SpentUnits(self, cost)

    def part(self, cost: int) -> LedgerEntry:
        """Return the charge of so many units, for their refund."""
        return self.entry.costing(cost)


class SpentUnits(NamedTuple):
    """Prepaid units that a call has taken."""

    units: PrepaidUnits
    cost: int


class PrepaidRefusal(NamedTuple):
    """The store's refusal of a cost, from the time ``at`` on; the store is asked again after ``until``."""

    answer: Answer
    cost: int
    at: float
    until: float


class PrepaidBudget:
    """The budget of an ident under a rule as a process knows it, with the prepaid units that the process holds.

    Not thread-safe: the caller holds a lock.
    """

    __slots__ = (
        "_asked_at", "_asks_at", "_elsewhere", "_is_scarce", "_paying", "_batches", "_refusal", "_resets_at", "_size",
        "_until", "demand", "ident", "known_remaining", "rule",
    )  # fmt: skip

    def __init__(self, rule: Rule, ident: str, now: float) -> None:
        self.rule, self.ident = rule, ident
        self.known_remaining = 0  #: units that remained in the store when it last answered
        self.demand = 0  #: units that calls needed since the last order
        self._resets_at = self._asks_at = now
        self._batches: list[PrepaidUnits] = []
        self._refusal: PrepaidRefusal | None = None
        self._asked_at = now - 2 * DEMAND_SECONDS
        self._size = 1
        self._is_scarce = False  # the store has too little for the demand
        # Cache of ``units_for``: the units that pay, the number of other units, and the first end of any of them.
        self._paying: PrepaidUnits | None = None
        self._elsewhere, self._until = 0, now

    def spend(self, cost: int, now: float) -> Decision | None:
        """Decide a call by the units of a single order. Return None if no such units are enough."""
        if (paying := self.units_for(cost, now)) is None:
            return None
        paying.unspent -= cost
        self.demand += cost
        remaining = self.known_remaining + self._elsewhere + paying.unspent
        return prepaid_decision(self.rule, self.ident, cost, remaining, self._resets_at - now)

    def units_for(self, cost: int, now: float) -> PrepaidUnits | None:
        """Return the oldest units of a single order that are enough for a call; None if there are none.

        Return None under a shadow rule, too.
        """
        if (paying := self._paying) is not None and paying.unspent >= cost and now < self._until:
            return paying
        live = [units for units in self._batches if now < units.until]
        for units in live:
            if units.unspent >= cost:
                if self.rule.is_shadow:
                    return None
                self._paying, self._until = units, min([other.until for other in live])
                self._elsewhere = sum([other.unspent for other in live]) - units.unspent
                return units
        return None

    def clear_paying(self) -> None:
        """Clear the cache of ``units_for``, because the units have changed."""
        self._paying = None

    def take(self, cost: int, now: float) -> list[SpentUnits] | None:
        """Take units, the oldest first. Return None if the process holds too few."""
        if self.held(now) < cost:
            return None
        self.clear_paying()
        taken = []
        for units in self._batches:
            if now < units.until and (part := min(units.unspent, cost)):
                taken.append(units.take(part))
                cost -= part
        return taken

    def held(self, now: float) -> int:
        """Return the number of units that may be spent."""
        return sum([units.unspent for units in self._batches if now < units.until])

    def answer(self, now: float) -> Answer:
        """Return the state of the budget as this process knows it, with the units that the process holds."""
        return Answer(0, self.known_remaining + self.held(now), max(0, round((self._resets_at - now) * 1_000_000)))

    def refusal(self, cost: int, now: float) -> Answer | None:
        """Return the store's last refusal as it reads now. Return None if the store is to be asked."""
        refusal = self._refusal
        if refusal is None or cost < refusal.cost:
            return None
        again_in = max(refusal.until - now, self.pause(now))
        if again_in <= 0:
            return None
        age_us = round((now - refusal.at) * 1_000_000)
        retry = refusal.answer.retry
        if retry != NEVER:
            retry = max(retry - age_us, ceil(again_in * 1_000_000) if now >= refusal.until else 1)
        return refusal.answer._replace(retry=retry, reset=max(0, refusal.answer.reset - age_us))

    def pause(self, now: float) -> float:
        """Return the seconds until this process may ask the store again; 0.0 unless little remains."""
        if not self._is_scarce:
            return 0.0
        return max(0.0, self._asks_at - now - (MAX_ORDER_BURST - 1) / ORDERS_A_SECOND)

    def next_size(self, cost: int, now: float) -> int:
        """Start an order for a call of this cost. Return its size, by the demand and by what remains."""
        since, demand = now - self._asked_at, self.demand
        self._asked_at, self.demand = now, 0
        params = self.rule.params
        needed = room = cost
        if since <= DEMAND_SECONDS and params.hold_us:
            ahead = min(AHEAD_SECONDS, params.hold_us / 1_000_000)
            needed = min(ceil(demand / max(since, 0.001) * ahead), MAX_GROWTH * self._size)
            room = min(
                _most_of(self.known_remaining + self._refilled(since)), params.limit // LIMIT_DIVISOR - self.held(now)
            )
        self._is_scarce = needed > room
        self._size = max(cost, min(needed, room))
        return self._size

    def _refilled(self, seconds: float) -> int:
        """Return an estimate of the units that came back since, at most the size of the last order."""
        params, window = self.rule.params, self.rule.window
        return 0 if params.resets_at_once or not window else min(self._size, int(params.limit * seconds / window))

    def smaller_size(self, cost: int, remaining: int) -> int:
        """Return a smaller size for an order that was refused; ``remaining`` is from the refusal."""
        self._is_scarce = True
        self._size = max(cost, min(self._size - 1, _most_of(remaining)))
        return self._size

    def note_command(self, now: float) -> None:
        """Note that a command is sent. Commands that follow closely may have to wait."""
        self._asks_at = max(self._asks_at, now) + 1 / ORDERS_A_SECOND
        if not self._is_scarce:  # commands for which there was demand cause no wait later
            self._limit_pause(now)

    def add_units(self, cost: int, answer: Answer, sent_at: float) -> PrepaidUnits:
        """Add the units that the store has charged. They may be spent for as long as they count in the store."""
        lifetime_us = self.rule.params.hold_us
        if self.rule.params.resets_at_once:
            lifetime_us = min(lifetime_us, answer.reset)
        entry = LedgerEntry(Charge(self.rule, self.ident, cost), answer.at, answer.reset)
        units = PrepaidUnits(entry, sent_at + (lifetime_us - 1) / 1_000_000)  # a microsecond less, because of rounding
        self._batches.append(units)
        self.clear_paying()
        self.note_answer(answer, sent_at)
        self._refusal = None
        return units

    def note_refusal(self, cost: int, answer: Answer, sent_at: float) -> None:
        """Note that the store has refused this cost."""
        wait = MAX_REFUSAL_SECONDS if answer.retry == NEVER else min(answer.retry / 1_000_000, MAX_REFUSAL_SECONDS)
        self._refusal = PrepaidRefusal(answer, cost, sent_at, sent_at + wait)
        self.note_answer(answer, sent_at)
        self._is_scarce = True

    def remove_expired(self, now: float = inf) -> list[PrepaidUnits]:
        """Remove the units that may be spent no longer, and return those to refund. Without ``now`` remove all."""
        expired = [units for units in self._batches if now >= units.until]
        self._batches = [units for units in self._batches if now < units.until]
        self.clear_paying()
        for units in expired:
            units.is_over = True
        return [units for units in expired if units.unspent]

    def note_failure(self, now: float) -> None:
        """Note that the store has failed: earlier refusals, and commands sent meanwhile, delay no call any more."""
        self._refusal, self._is_scarce = None, False
        self._limit_pause(now)

    def _limit_pause(self, now: float) -> None:
        """Limit the wait for the next command as if no more commands had been sent than may be sent at once."""
        self._asks_at = min(self._asks_at, now + MAX_ORDER_BURST / ORDERS_A_SECOND)

    def is_idle(self, now: float) -> bool:
        """Return True if the process holds no units, and its knowledge of the demand has expired."""
        return not self._batches and now - self._asked_at > DEMAND_SECONDS

    def note_answer(self, answer: Answer, sent_at: float) -> None:
        """Note the state of the budget in the store."""
        self.known_remaining, self._resets_at = answer.remaining, sent_at + answer.reset / 1_000_000


def _most_of(remaining: int) -> int:
    return remaining - remaining // 4


class MissingUnits(NamedTuple):
    """A charge of a call for which the process holds too few units; ``place`` is its index among the charges."""

    budget: PrepaidBudget
    place: int
    cost: int


class PrepaidCall:
    """The charges of a call under prepaid rules, with the units that it takes. Mappings are by index of the charge."""

    __slots__ = ("answers", "charges", "crossed", "has_ended", "refused", "taken")

    def __init__(self, charges: tuple[Charge, ...]) -> None:
        self.charges = charges
        self.taken: dict[int, list[SpentUnits]] = {}
        self.refused: dict[int, Answer] = {}  #: answers of the budgets that refuse
        self.answers: dict[int, Answer] = {}  #: answers of the budgets from which units were taken
        self.crossed: tuple[ThresholdReached, ...] = ()
        self.has_ended = False  #: True once the call waits for no units any more

    @property
    def is_refused(self) -> bool:
        return any(not self.charges[place].rule.is_shadow for place in self.refused)

    @property
    def decision(self) -> Decision:
        """The decision by the answers of the budgets. Budgets not asked, because of a refusal, are left out."""
        answers = sorted({**self.answers, **self.refused}.items())
        charges = tuple([self.charges[place] for place, _ in answers])
        outcomes = outcomes_of(charges, [answer for _, answer in answers], commit=not self.is_refused)
        return combine_outcomes(outcomes)._replace(crossed=() if self.is_refused else self.crossed)

    def take(self, budgets: Sequence[PrepaidBudget], now: float) -> list[MissingUnits]:
        """Take the units that the process holds, note refusals, and return what is missing."""
        missing = []
        for place, (budget, charge) in enumerate(zip(budgets, self.charges, strict=True)):
            if place in self.taken or place in self.refused:
                continue
            budget.demand += charge.cost
            if (taken := budget.take(charge.cost, now)) is not None:
                self.taken[place] = taken
            elif (refusal := budget.refusal(charge.cost, now)) is not None:
                self.refused[place] = refusal
            elif pause := budget.pause(now):
                self.refused[place] = budget.answer(now)._replace(retry=ceil(pause * 1_000_000))
            else:
                missing.append(MissingUnits(budget, place, charge.cost))
        if self.is_refused or not missing:
            self.answers = {place: budgets[place].answer(now) for place in self.taken}
        return [] if self.is_refused else missing


class PrepaidOrder:
    """An order of units by a single command, for a call and for those after it."""

    __slots__ = ("call", "missing", "sizes")

    def __init__(self, call: PrepaidCall, missing: list[MissingUnits], now: float) -> None:
        self.call, self.missing = call, missing
        self.sizes = [units.budget.next_size(units.cost, now) for units in missing]

    def command(self, now: float) -> Decide:
        """Return the command to send now."""
        for units in self.missing:
            units.budget.note_command(now)
        rows = zip(self.missing, self.sizes, strict=True)
        return Decide(Charges.of([Charge(units.budget.rule, units.budget.ident, size) for units, size in rows]))

    def shrink(self, answers: Sequence[Answer]) -> bool:
        """Reduce refused sizes by what remains. Return False if the order fits, or the call's own cost was refused."""
        rows = list(zip(self.missing, self.sizes, answers, strict=True))
        refused = [row for row in rows if row[2].retry and not row[0].budget.rule.is_shadow]
        if not refused or any(size == units.cost for units, size, _ in refused):
            return False
        self.sizes = [
            units.budget.smaller_size(units.cost, answer.remaining) if answer.retry else size
            for units, size, answer in rows
        ]
        return True

    def settle(self, command: Decide, answers: Sequence[Answer], sent_at: float) -> list[PrepaidUnits]:
        """Add the units that the store has charged, and return them. The call takes its own, even if they expired."""
        granted = all(map(passes, command.charges, answers))
        batches = []
        for (budget, place, cost), charge, answer in zip(self.missing, command.charges, answers, strict=True):
            if answer.retry and charge.cost > cost:
                budget.note_answer(answer, sent_at)
            elif answer.retry:
                budget.note_refusal(cost, answer, sent_at)
                self.call.refused[place] = answer
            elif granted:
                units = budget.add_units(charge.cost, answer, sent_at)
                batches.append(units)
                if not self.call.has_ended:
                    self.call.taken[place] = [units.take(cost)]
        if granted:
            self.call.crossed += thresholds_reached(command.charges, answers, outcomes_of(command.charges, answers))
        return batches
