"""The store's clock, as a process knows it, and the bounds of calendar periods by it."""

from __future__ import annotations

from copy import copy
from typing import Final

from django_throttle.core.algorithms import CounterParams
from django_throttle.core.algorithms.fixed_window import CalendarWindow
from django_throttle.core.rate import Bounds, bounds, period_of
from django_throttle.core.rule import Rule

# A clock that has moved by more than this was set, or is another store's.
STEP_US: Final = 500_000


class StoreTime:
    """The store's time minus ours, in microseconds; None until the store has answered."""

    __slots__ = ("_doubt", "offset")

    def __init__(self) -> None:
        self.offset: int | None = None
        self._doubt = float("inf")

    def copy(self) -> StoreTime:
        """A copy that learns by itself: on a Cluster each node has a clock of its own."""
        return copy(self)

    def learn(self, there: int, sent: float, heard: float) -> bool:
        """Adopt the store's time ``there``, read between two moments of our clock; True when its clock was set since.

        An offset that agrees stays as it is, unless this answer came sooner than those before.
        """
        least, most = there - micros(heard), there - micros(sent)
        known, doubt = self.offset, most - least
        if known is None or not least <= known <= most or doubt < self._doubt:
            self.offset, self._doubt = (least + most) // 2, doubt
        return known is not None and not least - STEP_US <= known <= most + STEP_US


def micros(seconds: float) -> int:
    """A moment or a length of time in whole microseconds."""
    return round(seconds * 1_000_000)


class Calendar:
    """Bounds by (period, time zone), found for the last time that the store's clock told. Safe to use from any thread.

    A script that gets bounds which do not hold the store's time returns that time, and ``learn`` notes it: one more
    round trip at the first use and every other period.
    """

    def __init__(self) -> None:
        self._now = 0
        self._bounds: dict[tuple[str, str], Bounds] = {}

    def learn(self, now: int) -> None:
        """Note the store's time, in microseconds, and drop bounds that do not hold it."""
        self._now = now
        copied = self._bounds.copy()  # at once, as other threads add to it
        self._bounds = {name: period for name, period in copied.items() if period[0] <= now < period[2]}

    def params(self, rule: Rule) -> CalendarWindow:
        """The plan of a rule that ``needs_calendar``, with its bounds; unknown ones until the time is known."""
        period = period_of(rule.rate) if rule.rate else None
        if period is None or not self._now:
            return CalendarWindow(rule.params.limit)
        name = period, rule.timezone or "UTC"
        found = self._bounds.get(name)
        if found is None:
            found = self._bounds[name] = bounds(*name, self._now)
        return CalendarWindow(rule.params.limit, *found)

    def params_at(self, rule: Rule, now: int) -> CounterParams:
        """The plan of any rule for a store that knows its time beforehand."""
        if not rule.params.needs_calendar:
            return rule.params
        params = self.params(rule)
        if not params.start <= now < params.finish:
            self.learn(now)
            params = self.params(rule)
        return params
