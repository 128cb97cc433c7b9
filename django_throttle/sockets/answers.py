"""What a store says of a socket's questions, as that socket remembers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_throttle.core.command import Charge
from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.lot import Lot
from django_throttle.stores.denials import LONGEST


class Denial(NamedTuple):
    """A refusal, when it was said, and until when it is said again without asking: seconds on the monotonic clock.

    ``ends`` is until when it can be said while no question may be asked.
    """

    decision: Decision
    costs: tuple[int, ...]
    at: float
    until: float
    ends: float

    @classmethod
    def of(cls, decision: Decision, costs: tuple[int, ...], now: float, *, lasts: bool) -> Denial:
        """A refusal of now; one that does not last is asked for again, so that it is counted again."""
        wait = LONGEST if decision.retry_after is None else decision.retry_after
        return cls(decision, costs, now, now + (min(wait, LONGEST) if lasts else 0.0), now + wait)


class Bought(NamedTuple):
    """What came of a question about frames of these costs; ``lot`` is None when it was refused."""

    decision: Decision
    charges: tuple[Charge, ...]
    costs: tuple[int, ...]
    lot: Lot | None
    alone: bool  # for one frame, and no other

    def pays(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> bool:
        """Whether a frame can be paid for by it."""
        return self.lot is not None and charges == self.charges and self.lot.covers(costs)

    def refuses(self, charges: tuple[Charge, ...], costs: tuple[int, ...]) -> bool:
        """Whether it says of this frame, too, that it may not pass."""
        if self.lot is not None or charges != self.charges or any(map(int.__lt__, costs, self.costs)):
            return False
        return self.alone or not fits(self.decision, costs)


def fits(decision: Decision, costs: Sequence[int]) -> bool:
    """Whether a frame alone would have passed, where several were asked for."""
    told = zip(decision.outcomes, costs, strict=False)
    return not decision.unavailable and all(one.allowed or one.shadow or one.remaining >= cost for one, cost in told)


def frames_left(decision: Decision, costs: Sequence[int]) -> int:
    """For how many frames like this one the rules had room left."""
    told = zip(decision.outcomes, costs, strict=False)
    return min([one.remaining // cost for one, cost in told if cost], default=0)


def too_late(decision: Decision) -> Decision:
    """A refusal of what would have to wait for longer than a socket lets anything wait."""
    refused = conclude(tuple(map(_refused, decision.outcomes)), degraded=decision.degraded)
    return refused._replace(cause=decision.cause)


def _refused(outcome: Outcome) -> Outcome:
    if outcome.delay <= MAX_DELAY:
        return outcome
    wait = outcome.delay - MAX_DELAY
    return outcome._replace(allowed=False, retry_after=wait, delay=0.0, reason=Reason.EXCEEDED)
