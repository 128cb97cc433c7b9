"""Units that a process has bought ahead of its calls: how many, until when they may be spent, and what goes back.

All times are seconds on the caller's monotonic clock, unless they are in a store's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Charges, Decide, Entry, passes
from django_throttle.core.decide import thresholds_reached
from django_throttle.core.decision import Decision, ThresholdReached, combine_outcomes, outcomes_of, prepaid_decision
from django_throttle.core.rule import Rule

# A purchase is for what will be spent in AHEAD seconds, at most GROWTH times the last one, three quarters of what is
# left, and with what is held already one SHARE of the limit: so much is lost with a process that is killed.
AHEAD: Final = 0.2
GROWTH: Final = 16
SHARE: Final = 4
PERIOD: Final = 1.0  # seconds without a purchase after which nothing is known of demand
# Where little is left, a process asks so many times at once, and so often a second.
MOST_ASKED: Final = 10
ASKED_A_SECOND: Final = 9
LONGEST: Final = 1.0  # seconds that a refusal is repeated at most, so that a budget given back elsewhere is noticed


class Purchase:
    """Units that one command has charged, and ``left`` of them; ``until`` then they may be spent."""

    __slots__ = ("entry", "is_over", "left", "until")

    def __init__(self, entry: Entry, until: float) -> None:
        self.entry, self.until = entry, until
        self.left = entry.charge.cost
        self.is_over = False  # what was left is refunded, so what a call gives back later is refunded by itself

    def take(self, cost: int) -> Taken:
        self.left -= cost
        return Taken(self, cost)

    def part(self, cost: int) -> Entry:
        """The charge of so many of them, by which these can be refunded."""
        return self.entry.costing(cost)


class Taken(NamedTuple):
    """Units of one purchase that a call takes."""

    purchase: Purchase
    cost: int


class Refusal(NamedTuple):
    """What the store said of a cost that did not fit, when it was asked, and until when it is repeated."""

    answer: Answer
    cost: int
    at: float
    until: float


class PrepaidBudget:
    """What one process knows and holds of one ident's budget under one rule. Its caller holds a lock."""

    __slots__ = (
        "_asked_at", "_asks_at", "_elsewhere", "_is_scarce", "_paying", "_purchases", "_refusal", "_resets_at", "_size",
        "_until", "demand", "ident", "known_left", "rule",
    )  # fmt: skip

    def __init__(self, rule: Rule, ident: str, now: float) -> None:
        self.rule, self.ident = rule, ident
        self.known_left = 0  # units that the store had left when it last answered
        self._resets_at = self._asks_at = now
        self._purchases: list[Purchase] = []
        self._refusal: Refusal | None = None
        self._asked_at = now - 2 * PERIOD
        self._size, self.demand = 1, 0  # units that calls have asked for since the last purchase
        self._is_scarce = False  # the last purchase was no larger as too little was left
        # The purchase that pays, what the others have left, and when one of them ends; None once they have changed.
        self._paying: Purchase | None = None
        self._elsewhere, self._until = 0, now

    def spend(self, cost: int, now: float) -> Decision | None:
        """The decision of a call that one purchase is enough for, which pays; None where it takes another look."""
        if (paying := self.paying(cost, now)) is None:
            return None
        paying.left -= cost
        self.demand += cost
        left = self.known_left + self._elsewhere + paying.left
        return prepaid_decision(self.rule, self.ident, cost, left, self._resets_at - now)

    def paying(self, cost: int, now: float) -> Purchase | None:
        """The purchase that is enough for a call by itself, the oldest first; None where it takes another look."""
        if (known := self._paying) is not None and known.left >= cost and now < self._until:
            return known
        live = [one for one in self._purchases if now < one.until]
        for one in live:
            if one.left >= cost:
                if self.rule.is_shadow:
                    return None
                self._paying, self._until = one, min([each.until for each in live])
                self._elsewhere = sum([each.left for each in live]) - one.left
                return one
        return None

    def look_again(self) -> None:
        """What is held has changed."""
        self._paying = None

    def take(self, cost: int, now: float) -> list[Taken] | None:
        """Take units that are held; None where these are too few. The oldest go first."""
        if self.held(now) < cost:
            return None
        self.look_again()
        taken = []
        for one in self._purchases:
            if now < one.until and (some := min(one.left, cost)):
                taken.append(one.take(some))
                cost -= some
        return taken

    def held(self, now: float) -> int:
        return sum([one.left for one in self._purchases if now < one.until])

    def answer(self, now: float) -> Answer:
        """Return the state of the budget as this process knows it, with the units that the process holds."""
        return Answer(0, self.known_left + self.held(now), max(0, round((self._resets_at - now) * 1_000_000)))

    def refusal(self, cost: int, now: float) -> Answer | None:
        """The store's last refusal, as it reads now, where it need not be asked again or may not be yet."""
        known = self._refusal
        if known is None or cost < known.cost:
            return None
        again_in = max(known.until - now, self.pause(now))
        if again_in <= 0:
            return None
        passed = round((now - known.at) * 1_000_000)
        retry = known.answer.retry
        if retry != NEVER:
            retry = max(retry - passed, ceil(again_in * 1_000_000) if now >= known.until else 1)
        return known.answer._replace(retry=retry, reset=max(0, known.answer.reset - passed))

    def pause(self, now: float) -> float:
        """Seconds until this process may ask again, where little is left; 0.0 when it may."""
        if not self._is_scarce:
            return 0.0
        return max(0.0, self._asks_at - now - (MOST_ASKED - 1) / ASKED_A_SECOND)

    def size(self, cost: int, now: float) -> int:
        """Return how much to buy for a call of this cost: by the demand since the last purchase, and what is left."""
        since, demand = now - self._asked_at, self.demand
        self._asked_at, self.demand = now, 0
        params = self.rule.params
        wanted = room = cost
        if since <= PERIOD and params.hold:
            ahead = min(AHEAD, params.hold / 1_000_000)
            wanted = min(ceil(demand / max(since, 0.001) * ahead), GROWTH * self._size)
            room = min(_most_of(self.known_left + self._refilled(since)), params.limit // SHARE - self.held(now))
        self._is_scarce = wanted > room
        self._size = max(cost, min(wanted, room))
        return self._size

    def _refilled(self, seconds: float) -> int:
        """What has come back since, for this process: no more than it took."""
        params, window = self.rule.params, self.rule.window
        return 0 if params.begins_afresh or not window else min(self._size, int(params.limit * seconds / window))

    def smaller(self, cost: int, remaining: int) -> int:
        """How much to buy where that was too much, and the store has said what is left."""
        self._is_scarce = True
        self._size = max(cost, min(self._size - 1, _most_of(remaining)))
        return self._size

    def note_command(self, now: float) -> None:
        """A command for this budget is sent: those that follow it closely may have to wait."""
        self._asks_at = max(self._asks_at, now) + 1 / ASKED_A_SECOND
        if not self._is_scarce:  # what demand made necessary is not waited for later
            self._forgive(now)

    def bought(self, cost: int, answer: Answer, sent_at: float) -> Purchase:
        """The store has charged this. Units may be spent for as long as they count there, by the time it was sent."""
        lasts = self.rule.params.hold
        if self.rule.params.begins_afresh:
            lasts = min(lasts, answer.reset)
        entry = Entry(Charge(self.rule, self.ident, cost), answer.at, answer.reset)
        purchase = Purchase(entry, sent_at + (lasts - 1) / 1_000_000)  # a microsecond less, for the roundings
        self._purchases.append(purchase)
        self.look_again()
        self.note(answer, sent_at)
        self._refusal = None
        return purchase

    def refused(self, cost: int, answer: Answer, sent_at: float) -> None:
        """The store has refused this cost."""
        wait = LONGEST if answer.retry == NEVER else min(answer.retry / 1_000_000, LONGEST)
        self._refusal = Refusal(answer, cost, sent_at, sent_at + wait)
        self.note(answer, sent_at)
        self._is_scarce = True

    def leftover(self, now: float = inf) -> list[Purchase]:
        """Forget the purchases that may be spent no longer; returns those of which something is to be refunded."""
        gone = [one for one in self._purchases if now >= one.until]
        self._purchases = [one for one in self._purchases if now < one.until]
        self.look_again()
        for one in gone:
            one.is_over = True
        return [one for one in gone if one.left]

    def note_failure(self, now: float) -> None:
        """The store has not answered: nothing is known, so no call waits, or is refused, by what it said before.

        Nor is what was asked meanwhile, as often as calls came, waited for when it answers again.
        """
        self._refusal, self._is_scarce = None, False
        self._forgive(now)

    def _forgive(self, now: float) -> None:
        """Count no more commands than may be sent at once."""
        self._asks_at = min(self._asks_at, now + MOST_ASKED / ASKED_A_SECOND)

    def is_idle(self, now: float) -> bool:
        """Whether nothing is held and nothing that is known matters any more."""
        return not self._purchases and now - self._asked_at > PERIOD

    def note(self, answer: Answer, sent_at: float) -> None:
        """The store has said how the budget stands."""
        self.known_left, self._resets_at = answer.remaining, sent_at + answer.reset / 1_000_000


def _most_of(left: int) -> int:
    return left - left // 4


class Wanted(NamedTuple):
    """A call's charge for which too little is held: the ``place``-th of the call's."""

    budget: PrepaidBudget
    place: int
    cost: int


class Claim:
    """What one call takes of prepaid budgets, by the places of its charges.

    ``answers`` are how these budgets stand then, ``refused`` those that refuse.
    """

    __slots__ = ("answers", "charges", "crossed", "has_ended", "refused", "taken")

    def __init__(self, charges: tuple[Charge, ...]) -> None:
        self.charges = charges
        self.taken: dict[int, list[Taken]] = {}
        self.refused: dict[int, Answer] = {}
        self.answers: dict[int, Answer] = {}
        self.crossed: tuple[ThresholdReached, ...] = ()
        self.has_ended = False  # nobody waits for it any more

    @property
    def is_refused(self) -> bool:
        return any(not self.charges[place].rule.is_shadow for place in self.refused)

    @property
    def decision(self) -> Decision:
        """What the budgets say of the call; one that a refusal has come before is left out."""
        said = sorted({**self.answers, **self.refused}.items())
        charges = tuple([self.charges[place] for place, _ in said])
        outcomes = outcomes_of(charges, [answer for _, answer in said], commit=not self.is_refused)
        return combine_outcomes(outcomes)._replace(crossed=() if self.is_refused else self.crossed)

    def take(self, budgets: Sequence[PrepaidBudget], now: float) -> list[Wanted]:
        """Take what is held and note what is refused; returns what is lacking."""
        lacking = []
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
                lacking.append(Wanted(budget, place, charge.cost))
        if self.is_refused or not lacking:
            self.answers = {place: budgets[place].answer(now) for place in self.taken}
        return [] if self.is_refused else lacking


class Buying:
    """A purchase that one command makes, for the claim of a call and for those that come after it."""

    __slots__ = ("claim", "sizes", "wanted")

    def __init__(self, claim: Claim, wanted: list[Wanted], now: float) -> None:
        self.claim, self.wanted = claim, wanted
        self.sizes = [charge.budget.size(charge.cost, now) for charge in wanted]

    def command(self, now: float) -> Decide:
        for one in self.wanted:
            one.budget.note_command(now)
        sized = zip(self.wanted, self.sizes, strict=True)
        return Decide(Charges.of([Charge(one.budget.rule, one.budget.ident, size) for one, size in sized]))

    def shrink(self, answers: Sequence[Answer]) -> bool:
        """Ask for less where that was refused, by what is left; False where what the call needs was refused."""
        sized = list(zip(self.wanted, self.sizes, answers, strict=True))
        refused = [one for one in sized if one[2].retry and not one[0].budget.rule.is_shadow]
        if not refused or any(size == one.cost for one, size, _ in refused):
            return False
        self.sizes = [one.budget.smaller(one.cost, said.remaining) if said.retry else size for one, size, said in sized]
        return True

    def settle(self, command: Decide, answers: Sequence[Answer], sent_at: float) -> list[Purchase]:
        """Adopt the store's answers; returns the purchases. The claim has its own units, however long that took."""
        granted = all(map(passes, command.charges, answers))
        purchases = []
        for (budget, place, cost), charge, answer in zip(self.wanted, command.charges, answers, strict=True):
            if answer.retry and charge.cost > cost:
                budget.note(answer, sent_at)
            elif answer.retry:
                budget.refused(cost, answer, sent_at)
                self.claim.refused[place] = answer
            elif granted:
                purchase = budget.bought(charge.cost, answer, sent_at)
                purchases.append(purchase)
                if not self.claim.has_ended:
                    self.claim.taken[place] = [purchase.take(cost)]
        if granted:
            self.claim.crossed += thresholds_reached(command.charges, answers, outcomes_of(command.charges, answers))
        return purchases
