"""The sliding log: the time and cost of each call in the window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, RuleLike, State, StepResult
from django_throttle.core.texts import gettext_lazy, gettext_noop

# A log keeps an entry for each call, of which there are as many as units at most; past this a strict sliding_window
# holds the same cap in one value.
MAX_LOG: Final = 10_000
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
        taken = sum(own for _, own in calls)
        retry = 0
        if taken + cost > limit:
            if counts_denied:
                calls = _newest([*calls, (now, min(cost, limit))], limit)
                taken, refused_state = sum(own for _, own in calls), _state(calls)
            retry = base.NEVER if cost > limit else _moment_of(calls, taken + cost - limit) + window - now
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
        """Those in the window; what was taken later than now, before the clock went back, was taken now."""
        found = zip(state[::2], state[1::2], strict=True) if state else ()
        return [(min(at, now), own) for at, own in found if at > now - self.window]

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        left: list[int] = []
        owed = cost
        for at, own in zip(state[::2], state[1::2], strict=True):
            back = min(own, owed) if at == since else 0  # the units of that microsecond are alike
            owed -= back
            left += (at, own - back) if own > back else ()
        return tuple(left) if owed < cost else None

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        for at, cost in zip(state[::2], state[1::2], strict=True):
            yield base.Backfill(cost, at)

    def charge_late(self, state: State | None, now: int, late: base.Backfill) -> base.Stored | None:
        """In the order of time; of more than the limit the newest are kept."""
        if late.at <= now - self.window:
            return None
        calls = sorted([*self._calls(state, now), (min(late.at, now), late.cost)])
        return base.Stored(_state(_newest(calls, self.limit)), self.window)


def _state(calls: Calls) -> State:
    return tuple(number for call in calls for number in call)


def _newest(calls: Calls, units: int) -> Calls:
    """The last so many units of these calls; the oldest of them may keep a part of its cost."""
    found: Calls = []
    for at, own in reversed(calls):
        found.append((at, min(own, units)))
        units -= own
        if units <= 0:
            break
    return found[::-1]


def _moment_of(calls: Calls, units: int) -> int:
    """When the call was made that took the last of the first so many units."""
    for at, own in calls:
        units -= own
        if units <= 0:
            return at
    raise AssertionError("a log never waits for more than it holds")


def params(rule: RuleLike) -> CounterParams:
    return SlidingLog(base.most_of(rule), base.counted_us(rule), hold=base.hold_of(rule))


def shape(rule: RuleLike, every: str) -> tuple[str, ...]:
    return (gettext_lazy("counted exactly in any {window}", window=every),)


SLIDING_LOG: Final = base.Algorithm(
    name="sliding_log",
    label="Sliding log",
    help="exactly, for small limits",
    params=params,
    shape=shape,
    max_limit=MAX_LOG,
    takes_more=gettext_noop("a strict sliding window takes any"),
    layout="2",
)
