"""A lot: what the store has charged for a socket in advance, to be spent frame by frame, and its rest given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django_throttle.core.command import Charge, Refund
from django_throttle.core.decision import Decision

# A lot lasts for a tenth of the shortest window, within these bounds in seconds: what is spent is spent nearly when it
# was charged. Where windows begin afresh it ends with the window.
SHORTEST: Final = 0.25
LONGEST: Final = 1.0
SHARE: Final = 0.1
AFRESH: Final = ("fixed_window", "calendar_window")


class Lot:
    """Bought at a moment by a decision; ``costs`` are what was charged for each of ``charges``.

    What only records is charged for but never lacking. Where a rule delays, each frame has its turn.
    """

    __slots__ = ("_charges", "_left", "_real", "_turns", "decision", "until")

    def __init__(self, charges: Sequence[Charge], costs: Sequence[int], decision: Decision, now: float) -> None:
        self.decision = decision._replace(crossed=())
        self.until = now + lifetime(charges, decision)
        self._charges = charges
        self._left = list(costs)
        self._real = [place for place, charge in enumerate(charges) if not charge.rule.is_shadow]
        told = zip(charges, decision.outcomes, strict=False)
        self._turns = {
            place: now + outcome.delay for place, (charge, outcome) in enumerate(told) if charge.rule.action == "delay"
        }

    def covers(self, costs: Sequence[int]) -> bool:
        """Whether a frame of these costs can be paid for by it."""
        return all([self._left[place] >= costs[place] for place in self._real])  # noqa: C419 - on the hot path

    def spend(self, costs: Sequence[int], now: float) -> float:
        """Pay for a frame; returns for how many seconds it is to wait for its turn."""
        self._left = [max(0, left - cost) for left, cost in zip(self._left, costs, strict=True)]
        wait = 0.0
        for place, turn in self._turns.items():
            plan = self._charges[place].rule.plan
            wait = max(wait, turn - now)
            self._turns[place] = turn + costs[place] * plan.a / plan.c / 1_000_000
        return wait

    def rest(self) -> Refund | None:
        """What goes back of it, once: nothing is left to be spent afterwards, or to go back again."""
        receipt = self.decision.receipt
        left = {(charge.rule.id, charge.ident): n for charge, n in zip(self._charges, self._left, strict=True)}
        self._left = [0] * len(self._left)
        if receipt is None:
            return None
        paid = [
            one._replace(charge=one.charge._replace(cost=n))
            for one in receipt.paid
            if (n := min(one.charge.cost, left.get((one.charge.rule.id, one.charge.ident), 0)))
        ]
        return Refund(tuple(paid), receipt.locally) if paid else None


def lifetime(charges: Sequence[Charge], decision: Decision) -> float:
    """For how many seconds a lot can be spent."""
    windows = [charge.rule.window for charge in charges if charge.rule.window is not None]
    longest = min(LONGEST, max(SHORTEST, SHARE * min(windows, default=LONGEST)))
    told = zip(charges, decision.outcomes, strict=False)
    return min([longest, *(one.reset_after for charge, one in told if charge.rule.plan.algorithm in AFRESH)])
