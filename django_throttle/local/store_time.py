"""The store's clock as a process knows it, and the bounds of calendar periods by this clock."""

from __future__ import annotations

from copy import copy
from typing import Final

from django_throttle.core.algorithms import CounterParams
from django_throttle.core.algorithms.fixed_window import CalendarWindow
from django_throttle.core.rate import Bounds, bounds, period_of
from django_throttle.core.rule import Rule

# A larger change means that the clock was set, or belongs to another store.
STEP_US: Final = 500_000


class StoreTime:
    """The offset of the store's clock from the clock of this process."""

    __slots__ = ("_error_us", "offset")

    def __init__(self) -> None:
        self.offset: int | None = None  #: microseconds that the store is ahead; None until the store has answered
        self._error_us = float("inf")

    def copy(self) -> StoreTime:
        """Return an independent copy, because each node of a Cluster has its own clock."""
        return copy(self)

    def learn(self, store_us: int, sent: float, received: float) -> bool:
        """Note the store's time, read between two times of this process. Return True if the store's clock was set.

        An offset that agrees stays as it is, unless this answer is more precise.
        """
        min_offset, max_offset = store_us - micros(received), store_us - micros(sent)
        former, error_us = self.offset, max_offset - min_offset
        if former is None or not min_offset <= former <= max_offset or error_us < self._error_us:
            self.offset, self._error_us = (min_offset + max_offset) // 2, error_us
        return former is not None and not min_offset - STEP_US <= former <= max_offset + STEP_US


def micros(seconds: float) -> int:
    """Return seconds in whole microseconds."""
    return round(seconds * 1_000_000)


class Calendar:
    """The bounds of calendar periods at the store's time, by period and time zone. Thread-safe.

    A script whose bounds do not contain the store's time returns that time for ``learn``. This takes one more round
    trip at the first use and in every other period.
    """

    def __init__(self) -> None:
        self._now = 0
        self._bounds: dict[tuple[str, str], Bounds] = {}

    def learn(self, now: int) -> None:
        """Note the store's time, in microseconds, and drop bounds that do not contain it."""
        self._now = now
        copied = self._bounds.copy()  # atomic, because other threads may add to it
        self._bounds = {name: period for name, period in copied.items() if period[0] <= now < period[2]}

    def params(self, rule: Rule) -> CalendarWindow:
        """Return the parameters of a rule that ``needs_calendar``. The bounds are 0 until the time is known."""
        period = period_of(rule.rate) if rule.rate else None
        if period is None or not self._now:
            return CalendarWindow(rule.params.limit)
        name = period, rule.timezone or "UTC"
        period_bounds = self._bounds.get(name)
        if period_bounds is None:
            period_bounds = self._bounds[name] = bounds(*name, self._now)
        return CalendarWindow(rule.params.limit, *period_bounds)

    def params_at(self, rule: Rule, now: int) -> CounterParams:
        """Return the parameters of any rule, for a store that knows its time beforehand."""
        if not rule.params.needs_calendar:
            return rule.params
        params = self.params(rule)
        if not params.start <= now < params.finish:
            self.learn(now)
            params = self.params(rule)
        return params
