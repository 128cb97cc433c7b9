"""The attempted rate and the suppression factor, from what sub-intervals of six seconds have counted.

Source: S. Woolf (Ably), "A distributed rate limiter that scales horizontally".
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Final, NamedTuple

SUB_US: Final = 6_000_000
SUB: Final = SUB_US / 1_000_000
KEPT: Final = 4  # sub-intervals, the one in progress included
ABOVE: Final = 0.05
NOISE: Final = 5.0  # square roots of a count, which is about what calls at random differ by


class Count(NamedTuple):
    """What was attempted in one sub-interval.

    ``attempted`` is what has been reported; ``projected`` is what it comes to when it goes on like that,
    the same once everyone has reported the whole of it; ``pace`` is what a whole one comes to, like that.
    """

    attempted: int
    projected: int
    pace: int


NOTHING: Final = Count(0, 0, 0)
Counts = tuple[Count, ...]  # KEPT of them, the one in progress first
EMPTY: Final[Counts] = (NOTHING,) * KEPT


class Allowance(NamedTuple):
    """A rule's limit, so much in so many microseconds, as estimators compute with it."""

    limit: int
    window_us: int

    def is_exceeded(self, count: int) -> bool:
        """True when one sub-interval had more than the limit allows in six seconds; exact."""
        return count * self.window_us > self.limit * SUB_US

    @property
    def per_sub(self) -> float:
        """The limit's cost in a sub-interval."""
        return self.limit * SUB_US / self.window_us

    @property
    def per_second(self) -> float:
        return self.limit * 1_000_000 / self.window_us


def fast(counts: Counts) -> float:
    """The larger of the rates of the sub-interval in progress and the last one, as cost in a sub-interval.

    The pace of the last seconds takes their place where it is above both by more than chance explains.
    """
    larger = max(counts[0].projected, counts[1].projected)
    pace = max(counts[0].pace, counts[1].pace)
    return pace if pace - larger > max(larger * ABOVE, NOISE * sqrt(pace)) else larger


def average(counts: Counts) -> float:
    """The mean of four sub-intervals; the one in progress is ignored while it is below the mean without it.

    So it does not ripple every six seconds, and is still quick on a spike.
    """
    current, *whole = counts
    mean = sum(count.projected for count in whole) / len(whole)
    return mean if current.attempted < mean else (current.attempted + mean * len(whole)) / len(counts)


ESTIMATORS: Final[dict[str, tuple[Callable[[Counts], float], int]]] = {"fast": (fast, 2), "average": (average, KEPT)}


def attempted(estimator: str, counts: Counts, allowance: Allowance) -> float:
    """The attempted cost in a sub-interval, or 0.0 when none that the estimator looks at had too much.

    What was reported has the say in that, never a projection: who keeps to the limit is never refused.
    """
    estimate, looks_at = ESTIMATORS[estimator]
    if not any(allowance.is_exceeded(count.attempted) for count in counts[:looks_at]):
        return 0.0
    return estimate(counts)


def factor(attempted: float, allowed: float) -> float:
    """The share of attempts to refuse so that the rest meets what is allowed: 1 - allowed ÷ attempted, in 0..1."""
    return 1.0 - allowed / attempted if attempted > allowed else 0.0


def shifted(counts: Counts, by: int) -> Counts:
    """The counts as they stand ``by`` sub-intervals later, as far as they are known: what was projected has come."""
    if by <= 0:
        return counts
    known = tuple(Count(count.projected, count.projected, count.pace) for count in counts)
    return (EMPTY[:by] + known)[:KEPT]
