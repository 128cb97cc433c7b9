"""The reference aggregator of dampers: the attempts of all processes, and estimators of the share to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.local.store_time import micros
from django_throttle.runtime import in_child

SUB_INTERVAL_US: Final = 6_000_000
SUB_INTERVAL_SECONDS: Final = SUB_INTERVAL_US / 1_000_000
KEPT_SUB_INTERVALS: Final = 4  # including the one in progress
MIN_PACE_EXCESS: Final = 0.05  # share
NOISE_DEVIATIONS: Final = 5.0  # in standard deviations of random arrivals, the square root of a count


class Count(NamedTuple):
    """The attempts in a sub-interval."""

    attempted: int  #: reported attempts
    projected: int  #: total expected at the end of the sub-interval
    pace: int  #: attempts in a whole sub-interval at the recent rate


ZERO_COUNT: Final = Count(0, 0, 0)
Counts = tuple[Count, ...]  # of KEPT_SUB_INTERVALS, the one in progress first
ZERO_COUNTS: Final[Counts] = (ZERO_COUNT,) * KEPT_SUB_INTERVALS


class Allowance(NamedTuple):
    """The limit of a rule in a window, for estimators."""

    limit: int
    window_us: int

    def is_exceeded(self, count: int) -> bool:
        """Return True if a count is more than the limit allows in a sub-interval. The comparison is exact."""
        return count * self.window_us > self.limit * SUB_INTERVAL_US

    @property
    def per_sub(self) -> float:
        return self.limit * SUB_INTERVAL_US / self.window_us

    @property
    def per_second(self) -> float:
        return self.limit * 1_000_000 / self.window_us


def larger_rate(counts: Counts) -> float:
    """Return the larger rate of the sub-interval in progress and the last one, as attempts in a sub-interval.

    Return the pace if it exceeds both by more than chance explains.
    """
    larger = max(counts[0].projected, counts[1].projected)
    pace = max(counts[0].pace, counts[1].pace)
    return pace if pace - larger > max(larger * MIN_PACE_EXCESS, NOISE_DEVIATIONS * sqrt(pace)) else larger


def mean_rate(counts: Counts) -> float:
    """Return the mean of the sub-intervals. The one in progress is ignored while it is below the mean of the others.

    So the mean does not drop every six seconds, and still reacts to a spike.
    """
    current, *whole = counts
    mean = sum(count.projected for count in whole) / len(whole)
    return mean if current.attempted < mean else (current.attempted + mean * len(whole)) / len(counts)


ESTIMATORS: Final[dict[str, tuple[Callable[[Counts], float], int]]] = {
    "fast": (larger_rate, 2),
    "average": (mean_rate, KEPT_SUB_INTERVALS),
}


def attempted(estimator: str, counts: Counts, allowance: Allowance) -> float:
    """Return the attempts in a sub-interval; 0.0 if no sub-interval of the estimator exceeds the limit.

    Only reported counts are compared with the limit, so that an ident within the limit is never refused.
    """
    estimate, sub_intervals = ESTIMATORS[estimator]
    if not any(allowance.is_exceeded(count.attempted) for count in counts[:sub_intervals]):
        return 0.0
    return estimate(counts)


def factor(attempted: float, allowed: float) -> float:
    """Return the suppression factor: the share of attempts to refuse, 1 - allowed ÷ attempted."""
    return 1.0 - allowed / attempted if attempted > allowed else 0.0


def shifted(counts: Counts, by: int) -> Counts:
    """Return the counts ``by`` sub-intervals later, with projections in place of reports."""
    if by <= 0:
        return counts
    completed = tuple(Count(count.projected, count.projected, count.pace) for count in counts)
    return (ZERO_COUNTS[:by] + completed)[:KEPT_SUB_INTERVALS]


# Reports of senders with a larger error are not counted, because they would be assigned to the wrong sub-interval.
MAX_CLOCK_ERROR_US: Final = 1_500_000
FIRST_SWEEP_SIZE: Final = 1024
RESET_MEMORY_US: Final = 2 * KEPT_SUB_INTERVALS * SUB_INTERVAL_US


class MeterCount(NamedTuple):
    """The attempts of a meter in a sub-interval."""

    sub: int  #: number of the sub-interval since the epoch
    attempted: int
    projected: int
    pace: int


class DamperReport(NamedTuple):
    """The report of a meter for a rule and an ident. Times are the sender's estimates of the store's, in microseconds.

    ``counts`` are totals, not additions, so a report that arrives twice, late or after a newer one changes nothing.
    """

    rule_id: str
    ident: str
    meter: str  #: name of the meter
    since: int  #: time since when the meter has counted
    sent_at: int | None  #: None if the sender does not know the store's time yet; there are no counts then
    counts: tuple[MeterCount, ...]


class Reply(NamedTuple):
    """The attempts of all meters."""

    now: int  #: the store's time in microseconds
    accepted: bool  #: False if the report was not counted, because of the sender's clock or of a later reset
    reset_at: int  #: time of the last reset of the budget
    counts: Counts


@dataclass(slots=True)
class Aggregate:
    """The attempts under a rule and an ident."""

    by_sub: dict[int, dict[str, Count]] = field(default_factory=dict)  #: latest count by sub-interval and meter
    reset_at: int = 0

    def take(self, report: DamperReport, now: int) -> Reply:
        """Count a report, unless its sender's clock is off, and return the counts of all meters."""
        current = now // SUB_INTERVAL_US
        self._expire(current)
        reset_at = self._reset_at(now)
        in_time = report.sent_at is not None and abs(now - report.sent_at) <= MAX_CLOCK_ERROR_US
        accepted = in_time and report.since >= reset_at
        if accepted:
            for count in report.counts:
                if current - KEPT_SUB_INTERVALS < count.sub <= current + 1:
                    self._count(count, report.meter)
        meters = (self.by_sub.get(current - age, {}).values() for age in range(KEPT_SUB_INTERVALS))
        counts = tuple(Count(*map(sum, zip(*each, strict=True))) if each else ZERO_COUNT for each in meters)
        return Reply(now, accepted, reset_at, counts)

    def reset(self, now: int) -> int:
        """Remove all counts, and ignore meters that began before ``now``. Return the number of sub-intervals."""
        current = now // SUB_INTERVAL_US
        self.reset_at = now
        return sum(
            self.by_sub.pop(index, None) is not None for index in range(current - KEPT_SUB_INTERVALS + 1, current + 2)
        )

    def is_idle(self, now: int) -> bool:
        self._expire(now // SUB_INTERVAL_US)
        return not self.by_sub and not self._reset_at(now)

    def _count(self, count: MeterCount, meter: str) -> None:
        meters = self.by_sub.setdefault(count.sub, {})
        if count.attempted >= meters.get(meter, ZERO_COUNT).attempted:
            meters[meter] = Count(*count[1:])

    def _expire(self, current: int) -> None:
        """Remove counts that are too old, or too new because the clock was set back."""
        for index in [index for index in self.by_sub if abs(index - current) > 2 * KEPT_SUB_INTERVALS]:
            del self.by_sub[index]

    def _reset_at(self, now: int) -> int:
        return self.reset_at if 0 <= now - self.reset_at < RESET_MEMORY_US else 0


class Aggregates:
    """The aggregates by rule and ident. ``clock`` returns seconds. Idle aggregates are removed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._renew()
        in_child(self, type(self)._renew)

    def damp(self, reports: Sequence[DamperReport]) -> list[Reply]:
        with self._lock:
            now = micros(self.clock())
            replies = [self._find(report.rule_id, report.ident).take(report, now) for report in reports]
            if len(self._aggregates) >= self._sweep_at:
                self._sweep(now)
            return replies

    def reset(self, rule_id: str, ident: str) -> int:
        """Reset a budget, and return the number of removed sub-intervals."""
        with self._lock:
            return self._find(rule_id, ident).reset(micros(self.clock()))

    def __len__(self) -> int:
        return len(self._aggregates)

    def _renew(self) -> None:
        self._lock = Lock()
        self._aggregates: dict[tuple[str, str], Aggregate] = {}
        self._sweep_at = FIRST_SWEEP_SIZE

    def _find(self, rule_id: str, ident: str) -> Aggregate:
        return self._aggregates.setdefault((rule_id, ident), Aggregate())

    def _sweep(self, now: int) -> None:
        self._aggregates = {key: aggregate for key, aggregate in self._aggregates.items() if not aggregate.is_idle(now)}
        self._sweep_at = max(FIRST_SWEEP_SIZE, 2 * len(self._aggregates))
