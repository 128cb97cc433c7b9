"""The reference aggregator and its estimators: what every process has attempted, and the share to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.lifecycle import in_child
from django_throttle.store_time import micros

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


# A report whose sender's idea of the time is this far off is not counted: it would go to the wrong sub-interval.
TOLERANCE_US: Final = 1_500_000
FIRST_SWEEP: Final = 1024
RESET_US: Final = 2 * KEPT * SUB_US  # for so long a reset is remembered


class Own(NamedTuple):
    """What one meter has attempted in one sub-interval; ``sub`` is its number, counted from the epoch."""

    sub: int
    attempted: int
    projected: int
    pace: int


class Report(NamedTuple):
    """What one meter tells of one rule and ident; times are the store's, in microseconds, as the sender knows them.

    ``counts`` are totals, not additions: a report that arrives twice, late or after a newer one changes nothing.
    ``since`` is when the meter began to count; ``sent_at`` is None when the sender does not know the time yet,
    and then there are no counts.
    """

    rule_id: str
    ident: str
    meter: str
    since: int
    sent_at: int | None
    counts: tuple[Own, ...]


class Reply(NamedTuple):
    """What all meters together have attempted.

    ``now`` is the store's time. ``taken`` is False when the report was not counted: its sender's clock is off, or
    the budget was given back at ``reset_at``, after the meter began.
    """

    now: int
    taken: bool
    reset_at: int
    counts: Counts


@dataclass(slots=True)
class Aggregate:
    """What was attempted under one rule and ident: by sub-interval, what each meter has said last."""

    told: dict[int, dict[str, Count]] = field(default_factory=dict)
    reset_at: int = 0

    def take(self, report: Report, now: int) -> Reply:
        """Count a report, unless it is out of time, and say how things stand."""
        current = now // SUB_US
        self._expire(current)
        reset_at = self._reset_at(now)
        in_time = report.sent_at is not None and abs(now - report.sent_at) <= TOLERANCE_US
        taken = in_time and report.since >= reset_at
        if taken:
            for own in report.counts:
                if current - KEPT < own.sub <= current + 1:
                    self._count(own, report.meter)
        counts = tuple(self._sum(current - age) for age in range(KEPT))
        return Reply(now, taken, reset_at, counts)

    def reset(self, now: int) -> int:
        """Forget it all, and what meters tell of the time before ``now``; returns the sub-intervals removed."""
        current = now // SUB_US
        self.reset_at = now
        return sum(self.told.pop(index, None) is not None for index in range(current - KEPT + 1, current + 2))

    def is_idle(self, now: int) -> bool:
        """True when nothing of it matters any more."""
        self._expire(now // SUB_US)
        return not self.told and not self._reset_at(now)

    def _count(self, own: Own, meter: str) -> None:
        meters = self.told.setdefault(own.sub, {})
        known = meters.get(meter, NOTHING)
        if own.attempted >= known.attempted:
            meters[meter] = Count(*own[1:])

    def _sum(self, index: int) -> Count:
        meters = self.told.get(index, {}).values()
        return Count(*map(sum, zip(*meters, strict=True))) if meters else NOTHING

    def _expire(self, current: int) -> None:
        """Forget what is too old, or too new, even should the clock be set by some intervals."""
        for index in [index for index in self.told if abs(index - current) > 2 * KEPT]:
            del self.told[index]

    def _reset_at(self, now: int) -> int:
        return self.reset_at if 0 <= now - self.reset_at < RESET_US else 0


class Aggregates:
    """An Aggregate for each rule and ident; ``clock`` says seconds. Idle ones are forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._renew()
        in_child(self, type(self)._renew)

    def damp(self, reports: Sequence[Report]) -> list[Reply]:
        """Take each report, and say how things stand."""
        with self._lock:
            now = micros(self.clock())
            replies = [self._find(report.rule_id, report.ident).take(report, now) for report in reports]
            if len(self._known) >= self._sweep_at:
                self._sweep(now)
            return replies

    def reset(self, rule_id: str, ident: str) -> int:
        """Give a budget back; returns the number of sub-intervals removed."""
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
