"""What a store says of a socket's questions, as that socket remembers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.lot import Lot


class Denial(NamedTuple):
    """A refusal, when it was said, and until when it is said again without asking: seconds on the monotonic clock."""

    decision: Decision
    costs: tuple[int, ...]
    at: float
    until: float
    ends: float


class Bought(NamedTuple):
    """What came of a question; ``lot`` is None when it was refused."""

    decision: Decision
    lot: Lot | None
    alone: bool  # for this one frame, and no other


def fits(decision: Decision, costs: Sequence[int]) -> bool:
    """Whether a frame alone would have passed, where several were asked for."""
    told = zip(decision.outcomes, costs, strict=False)
    return not decision.unavailable and all([one.allowed or one.shadow or one.remaining >= cost for one, cost in told])


def too_late(decision: Decision) -> Decision:
    """A refusal of what would have to wait for longer than a socket lets anything wait."""
    return conclude(tuple(map(_refused, decision.outcomes)), degraded=decision.degraded)


def _refused(outcome: Outcome) -> Outcome:
    if outcome.delay <= MAX_DELAY:
        return outcome
    wait = outcome.delay - MAX_DELAY
    return outcome._replace(allowed=False, retry_after=wait, delay=0.0, reason=Reason.EXCEEDED)
