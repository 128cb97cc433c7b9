"""The sliding log: the time and cost of each call in the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, RuleLike, State, StepResult
from django_throttle.core.texts import gettext_noop, translatable

# A log has an entry for each call, so at most one for each unit. For higher limits, a strict sliding_window keeps the
# same limit in a single value.
MAX_LOG_UNITS: Final = 10_000
Calls = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SlidingLog(CounterParams):
    """Exactly at most ``limit`` in any window. State: time and cost of each call, oldest first, at most ``limit``."""

    window: int
    name, wire_id = "sliding_log", 10

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        limit, window = self.limit, self.window
        calls = self._calls(state, now)
        refused_state = _state(calls) if state and state[-2] > now else None
        taken = sum(call_cost for _, call_cost in calls)
        retry = 0
        if taken + cost > limit:
            if counts_denied:
                calls = _newest([*calls, (now, min(cost, limit))], limit)
                taken, refused_state = sum(call_cost for _, call_cost in calls), _state(calls)
            retry = base.NEVER if cost > limit else _time_of(calls, taken + cost - limit) + window - now
        remaining = max(0, limit - taken)
        return StepResult(
            retry=retry,
            remaining=remaining,
            reset=calls[-1][0] + window - now if calls else 0,
            charged_remaining=remaining - cost,
            charged_reset=window,
            charged_state=(*_state(calls), now, cost) if retry == 0 else None,
            refused_state=refused_state,
        )

    def _calls(self, state: State | None, now: int) -> Calls:
        """Return the calls in the window. Calls in the future, from before the clock went back, count as of now."""
        calls = zip(state[::2], state[1::2], strict=True) if state else ()
        return [(min(at, now), cost) for at, cost in calls if at > now - self.window]

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        remaining_state: list[int] = []
        owed = cost
        for at, call_cost in zip(state[::2], state[1::2], strict=True):
            refunded = min(call_cost, owed) if at == since else 0  # units of the same microsecond are interchangeable
            owed -= refunded
            remaining_state += (at, call_cost - refunded) if call_cost > refunded else ()
        return tuple(remaining_state) if owed < cost else None

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        for at, cost in zip(state[::2], state[1::2], strict=True):
            yield base.Backfill(cost, at)

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        """Insert the call in the order of time. Of more units than the limit, the newest are kept."""
        if backfill.at <= now - self.window:
            return None
        calls = sorted([*self._calls(state, now), (min(backfill.at, now), backfill.cost)])
        return base.Stored(_state(_newest(calls, self.limit)), self.window)


def _state(calls: Calls) -> State:
    return tuple(number for call in calls for number in call)


def _newest(calls: Calls, units: int) -> Calls:
    """Return the calls with the last ``units`` units. The oldest call may keep a part of its cost."""
    newest: Calls = []
    for at, cost in reversed(calls):
        newest.append((at, min(cost, units)))
        units -= cost
        if units <= 0:
            break
    return newest[::-1]


def _time_of(calls: Calls, unit: int) -> int:
    """Return the time of the call that took the unit of this number, counted from 1."""
    for at, cost in calls:
        unit -= cost
        if unit <= 0:
            return at
    raise AssertionError("the unit is not in the log")


def params(rule: RuleLike) -> CounterParams:
    return SlidingLog(base.max_units_of(rule), base.counting_window_us(rule), hold_us=base.hold_us_of(rule))


def shape(rule: RuleLike, windows: str) -> tuple[str, ...]:
    return (translatable("counted exactly in any {window}", window=windows),)


SLIDING_LOG: Final = base.Algorithm(
    name="sliding_log",
    label="Sliding log",
    help="exact, for small limits",
    params=params,
    shape=shape,
    max_limit=MAX_LOG_UNITS,
    takes_more=gettext_noop("a strict sliding window takes any"),
    layout="2",
)
