"""The reference aggregator: what every process has attempted, by sub-interval. Says the same as ``damp.lua``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.damper.clocks import micros
from django_throttle.damper.estimators import KEPT, NOTHING, SUB_US, Count, Counts
from django_throttle.forks import in_child

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
        self._expire(now // SUB_US)
        removed = len(self.told)
        self.told.clear()
        self.reset_at = now
        return removed

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
        for index in [index for index in self.told if not current - KEPT < index <= current + 1]:
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
