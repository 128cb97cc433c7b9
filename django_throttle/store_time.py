"""Store time: what a process knows of its store's clock, and the bounds of calendar periods by it."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms import Plan
from django_throttle.core.algorithms.fixed_window import CalendarWindow
from django_throttle.core.rate import Bounds, bounds, period_of
from django_throttle.core.rule import Rule

# A store whose clock has moved by more than this has been set, or is another one.
STEP_US: Final = 500_000


class StoreTime:
    """The store's time minus ours, in microseconds; None until the store has answered."""

    __slots__ = ("_doubt", "offset")

    def __init__(self) -> None:
        self.offset: int | None = None
        self._doubt = float("inf")

    def copy(self) -> StoreTime:
        """What is known so far, to be made better by itself: on a Cluster each node has a clock of its own."""
        copied = StoreTime()
        copied.offset, copied._doubt = self.offset, self._doubt
        return copied

    def learn(self, there: int, sent: float, heard: float) -> bool:
        """The store said ``there`` between two moments of our clock; True when its clock was set since.

        What fits in between stays as it is, unless this answer was quicker than those before.
        """
        least, most = there - micros(heard), there - micros(sent)
        known, doubt = self.offset, most - least
        if known is None or not least <= known <= most or doubt < self._doubt:
            self.offset, self._doubt = (least + most) // 2, doubt
        return known is not None and not least - STEP_US <= known <= most + STEP_US


def micros(seconds: float) -> int:
    """A moment or a length of time in whole microseconds."""
    return round(seconds * 1_000_000)


UNKNOWN: Bounds = (0, 0, 0)


class Calendar:
    """Bounds by (period, time zone), found for the last time that the store's clock told.

    The clock is the store's, so a script that gets bounds which do not hold its time says what time it
    is; ``learn`` notes it. That costs one more round trip every other period, and at the first use.
    """

    def __init__(self) -> None:
        self._now = 0
        self._bounds: dict[tuple[str, str], Bounds] = {}

    def learn(self, now: int) -> None:
        """The store's clock says ``now``, in microseconds, and some bounds do not hold it."""
        self._now = now
        self._bounds = {name: known for name, known in self._bounds.items() if known[0] <= now < known[2]}

    def plan(self, rule: Rule) -> CalendarWindow:
        """The plan of a rule that ``needs_calendar``, with its bounds; unknown ones until the time is known."""
        period = period_of(rule.rate) if rule.rate else None
        if period is None or not self._now:
            return CalendarWindow(rule.plan.limit)
        name = period, rule.timezone or "UTC"
        if name not in self._bounds:
            self._bounds[name] = bounds(*name, self._now)
        return CalendarWindow(rule.plan.limit, *self._bounds[name])

    def plan_at(self, rule: Rule, now: int) -> Plan:
        """The plan of any rule for a store that knows its time beforehand."""
        if not rule.plan.needs_calendar:
            return rule.plan
        plan = self.plan(rule)
        if not plan.start <= now < plan.finish:
            self.learn(now)
            plan = self.plan(rule)
        return plan
