"""Fixed windows: a count that starts at zero at each multiple of a window since the epoch, or with a calendar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, RuleLike, State, StepResult
from django_throttle.core.texts import translatable


class Window(CounterParams, ABC):
    """At most ``limit`` between two times. State: start, count."""

    __slots__ = ()
    resets_at_once = True

    @property
    def max_count(self) -> int:
        return base.max_count_of(self.limit)

    @property
    def record_numbers(self) -> int:
        return 1

    @abstractmethod
    def bounds(self, now: int) -> tuple[int, int]:
        """Return the begin and the end of the window at ``now``."""

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        limit = self.limit
        start, finish = self.bounds(now)
        began, count = state or (start, 0)
        refused_state = None
        if began < start:
            count = 0
        elif began > start:  # the clock went back: earlier counts belong to this window
            refused_state = (start, count)
        left = finish - now
        retry = 0
        if count + cost > limit:
            retry = base.NEVER if cost > limit else left
            if counts_denied:
                count = min(count + cost, self.max_count)
                refused_state = (start, count)
        remaining = max(0, limit - count)
        return StepResult(
            retry=retry,
            remaining=remaining,
            reset=left if count else 0,
            charged_remaining=remaining - cost,
            charged_reset=left,
            charged_state=(start, count + cost) if retry == 0 else None,
            refused_state=refused_state,
        )

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        start, count = state
        return (start, max(0, count - cost)) if start <= since else None  # else the window of the charge has ended

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        yield base.Backfill(state[1], now)

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        start, finish = self.bounds(now)
        if backfill.at < start:
            return None
        count = state[1] if state and state[0] >= start else 0
        return base.Stored((start, min(count + backfill.cost, self.max_count)), finish - now)


@dataclass(frozen=True, slots=True)
class FixedWindow(Window):
    """Windows from the epoch on, with at most ``limit`` in each. So at most twice the limit in any window."""

    window: int
    name, wire_id = "fixed_window", 1

    def bounds(self, now: int) -> tuple[int, int]:
        start = now - now % self.window
        return start, start + self.window

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        start, count = state
        yield base.Backfill(count, min(now, start + self.window - 1))


@dataclass(frozen=True, slots=True)
class CalendarWindow(Window):
    """A calendar period from ``start`` to ``middle``, and the next until ``finish``. The store fills these in."""

    start: int = 0
    middle: int = 0
    finish: int = 0
    name, wire_id = "calendar_window", 2
    lua = "fixed_window.lua"
    needs_calendar = True

    def bounds(self, now: int) -> tuple[int, int]:
        return (self.start, self.middle) if now < self.middle else (self.middle, self.finish)


def is_calendar(rule: RuleLike) -> bool:
    """Return True if the windows of the rule are calendar periods."""
    return rule.timezone is not None or (rule.rate is not None and rule.rate.monthly)


def params(rule: RuleLike) -> CounterParams:
    if is_calendar(rule):
        return CalendarWindow(base.max_units_of(rule), hold_us=base.MAX_HOLD_US)
    return FixedWindow(base.max_units_of(rule), base.rate_of(rule).window_us, hold_us=base.MAX_HOLD_US)


def shape(rule: RuleLike, windows: str) -> tuple[str, ...]:
    if not rule.timezone:
        return (translatable("counted afresh every {window}", window=windows),)
    return (translatable("counted afresh every {window} in {timezone}", window=windows, timezone=rule.timezone),)


FIXED_WINDOW: Final = base.Algorithm(
    name="fixed_window",
    label="Fixed window",
    help="resets each minute, day or month",
    params=params,
    shape=shape,
    takes=("timezone",),
    has_calendar=True,
)
