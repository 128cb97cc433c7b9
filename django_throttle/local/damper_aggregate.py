"""The reference aggregator: what all processes have attempted, and the estimators of the share to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.local.store_time import micros
from django_throttle.runtime import in_child

SUB_US: Final = 6_000_000
SUB: Final = SUB_US / 1_000_000
KEPT: Final = 4  # sub-intervals, the one in progress included
ABOVE: Final = 0.05
NOISE: Final = 5.0  # square roots of a count, the standard deviation of random arrivals


class Count(NamedTuple):
    """What was attempted in one sub-interval.

    ``attempted`` has been reported. ``projected`` is the total expected at its end: the same once every process has
    reported the whole of it. ``pace`` is what a whole sub-interval comes to at the recent rate.
    """

    attempted: int
    projected: int
    pace: int


NOTHING: Final = Count(0, 0, 0)
Counts = tuple[Count, ...]  # KEPT of them, the one in progress first
EMPTY: Final[Counts] = (NOTHING,) * KEPT


class Allowance(NamedTuple):
    """A rule's limit in a window of microseconds, as estimators compute with it."""

    limit: int
    window_us: int

    def is_exceeded(self, count: int) -> bool:
        """True when one sub-interval had more than the limit allows in six seconds; exact."""
        return count * self.window_us > self.limit * SUB_US

    @property
    def per_sub(self) -> float:
        return self.limit * SUB_US / self.window_us

    @property
    def per_second(self) -> float:
        return self.limit * 1_000_000 / self.window_us


def larger_rate(counts: Counts) -> float:
    """The larger of the rates of the sub-interval in progress and the last one, as cost in a sub-interval.

    The pace replaces them where it is above both by more than chance explains.
    """
    larger = max(counts[0].projected, counts[1].projected)
    pace = max(counts[0].pace, counts[1].pace)
    return pace if pace - larger > max(larger * ABOVE, NOISE * sqrt(pace)) else larger


def mean_rate(counts: Counts) -> float:
    """The mean of four sub-intervals; the one in progress is ignored while it is below the mean without it.

    So it does not ripple every six seconds, and still reacts to a spike.
    """
    current, *whole = counts
    mean = sum(count.projected for count in whole) / len(whole)
    return mean if current.attempted < mean else (current.attempted + mean * len(whole)) / len(counts)


ESTIMATORS: Final[dict[str, tuple[Callable[[Counts], float], int]]] = {
    "fast": (larger_rate, 2),
    "average": (mean_rate, KEPT),
}


def attempted(estimator: str, counts: Counts, allowance: Allowance) -> float:
    """The attempted cost in a sub-interval, or 0.0 when none that the estimator looks at had too much.

    Only reported counts decide that, never a projection: an ident within the limit is never refused.
    """
    estimate, looks_at = ESTIMATORS[estimator]
    if not any(allowance.is_exceeded(count.attempted) for count in counts[:looks_at]):
        return 0.0
    return estimate(counts)


def factor(attempted: float, allowed: float) -> float:
    """The suppression factor: the share to refuse so that the rest meets what is allowed, 1 - allowed ÷ attempted."""
    return 1.0 - allowed / attempted if attempted > allowed else 0.0


def shifted(counts: Counts, by: int) -> Counts:
    """The counts ``by`` sub-intervals later, assuming that the projections came true."""
    if by <= 0:
        return counts
    known = tuple(Count(count.projected, count.projected, count.pace) for count in counts)
    return (EMPTY[:by] + known)[:KEPT]


# A report whose sender is this far off the store's time is not counted: it would go to the wrong sub-interval.
TOLERANCE_US: Final = 1_500_000
FIRST_SWEEP: Final = 1024
RESET_US: Final = 2 * KEPT * SUB_US  # how long a reset is remembered


class MeterCount(NamedTuple):
    """The attempts of one meter in one sub-interval; ``sub`` is its number, counted from the epoch."""

    sub: int
    attempted: int
    projected: int
    pace: int


class Report(NamedTuple):
    """The report of one meter, of one rule and ident; times are the store's, in microseconds, as the sender knows them.

    ``counts`` are totals, not additions: a report that arrives twice, late or after a newer one changes nothing.
    ``since`` is when the meter began to count. ``sent_at`` is None when the sender does not know the store's time
    yet; then there are no counts.
    """

    rule_id: str
    ident: str
    meter: str
    since: int
    sent_at: int | None
    counts: tuple[MeterCount, ...]


class Reply(NamedTuple):
    """The attempts of all meters together.

    ``now`` is the store's time. ``taken`` is False when the report was not counted: its sender's clock is off, or
    the budget was reset at ``reset_at``, after the meter began.
    """

    now: int
    taken: bool
    reset_at: int
    counts: Counts


@dataclass(slots=True)
class Aggregate:
    """The attempts under one rule and ident: by sub-interval, each meter's latest count."""

    by_sub: dict[int, dict[str, Count]] = field(default_factory=dict)
    reset_at: int = 0

    def take(self, report: Report, now: int) -> Reply:
        """Count a report, unless its sender's clock is off, and return the counts of all meters."""
        current = now // SUB_US
        self._expire(current)
        reset_at = self._reset_at(now)
        in_time = report.sent_at is not None and abs(now - report.sent_at) <= TOLERANCE_US
        taken = in_time and report.since >= reset_at
        if taken:
            for own in report.counts:
                if current - KEPT < own.sub <= current + 1:
                    self._count(own, report.meter)
        meters = (self.by_sub.get(current - age, {}).values() for age in range(KEPT))
        counts = tuple(Count(*map(sum, zip(*each, strict=True))) if each else NOTHING for each in meters)
        return Reply(now, taken, reset_at, counts)

    def reset(self, now: int) -> int:
        """Forget all counts, and those that meters began before ``now``; returns the sub-intervals removed."""
        current = now // SUB_US
        self.reset_at = now
        return sum(self.by_sub.pop(index, None) is not None for index in range(current - KEPT + 1, current + 2))

    def is_idle(self, now: int) -> bool:
        self._expire(now // SUB_US)
        return not self.by_sub and not self._reset_at(now)

    def _count(self, own: MeterCount, meter: str) -> None:
        meters = self.by_sub.setdefault(own.sub, {})
        known = meters.get(meter, NOTHING)
        if own.attempted >= known.attempted:
            meters[meter] = Count(*own[1:])

    def _expire(self, current: int) -> None:
        """Forget what is too old, or too new, even should the clock be set by some intervals."""
        for index in [index for index in self.by_sub if abs(index - current) > 2 * KEPT]:
            del self.by_sub[index]

    def _reset_at(self, now: int) -> int:
        return self.reset_at if 0 <= now - self.reset_at < RESET_US else 0


class Aggregates:
    """An Aggregate for each rule and ident; ``clock`` returns seconds. Idle ones are removed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._renew()
        in_child(self, type(self)._renew)

    def damp(self, reports: Sequence[Report]) -> list[Reply]:
        with self._lock:
            now = micros(self.clock())
            replies = [self._find(report.rule_id, report.ident).take(report, now) for report in reports]
            if len(self._known) >= self._sweep_at:
                self._sweep(now)
            return replies

    def reset(self, rule_id: str, ident: str) -> int:
        """Reset a budget; returns the number of sub-intervals removed."""
        with self._lock:
            return self._find(rule_id, ident).reset(micros(self.clock()))

    def __len__(self) -> int:
        return len(self._known)

    def _renew(self) -> None:
        self._lock = Lock()
        self._known: dict[tuple[str, str], Aggregate] = {}
        self._sweep_at = FIRST_SWEEP

    def _find(self, rule_id: str, ident: str) -> Aggregate:
        return self._known.setdefault((rule_id, ident), Aggregate())

    def _sweep(self, now: int) -> None:
        self._known = {key: known for key, known in self._known.items() if not known.is_idle(now)}
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._known))
