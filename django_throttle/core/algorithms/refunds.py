"""What is left of a counter when a charge is given back, as if it had not been made.

Each takes ``(state, now, cost, plan, since, reset)``: the stored state, the store's time, what was charged,
the rule's Plan, when it was charged, and the time to full that was answered then; times in microseconds. Each
returns the state to store, an empty one when nothing is left to store, or None when there is nothing to give
back. Never more than was charged, and never what would have come back by now without it. The same is said by
``stores/lua/refund.lua``; property tests run on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.plan import Plan, State

NOTHING: Final[State] = ()


def from_window(state: State, now: int, cost: int, plan: Plan, since: int, reset: int) -> State | None:
    """A window that has ended took the charge with it."""
    start, count = state
    return (start, max(0, count - cost)) if start <= since else None


def from_sliding_window(state: State, now: int, cost: int, plan: Plan, since: int, reset: int) -> State | None:
    """Taken off the sub-window of that time; after a step back of the clock all of it counts in the newest."""
    index, *counts = state
    age = max(0, index - since // plan.a)
    if age >= len(counts):
        return None
    counts[age] = max(0, counts[age] - cost)
    return (index, *counts)


def from_log(state: State, now: int, cost: int, plan: Plan, since: int, reset: int) -> State | None:
    """The units of that microsecond are alike."""
    left: list[int] = []
    owed = cost
    for at, own in zip(state[::2], state[1::2], strict=True):
        back = min(own, owed) if at == since else 0
        owed -= back
        left += (at, own - back) if own > back else ()
    return tuple(left) if owed < cost else None


def from_gcra(state: State, now: int, cost: int, plan: Plan, since: int, reset: int) -> State | None:
    """What has flowed out since then would have been other charges', or nobody's: only the rest comes back."""
    (arrival, fraction), unit, fineness = state, plan.a, plan.c
    before = max(0, (reset if fineness == 1 else reset - 1) * fineness - cost * unit)
    back = cost * unit - max(0, (now - since) * fineness - before)
    used = (arrival - now) * fineness + min(fraction, fineness - 1) - back
    if back <= 0:
        return None
    return (now + used // fineness, used % fineness) if used > 0 else NOTHING


def from_interval_bucket(state: State, now: int, cost: int, plan: Plan, since: int, reset: int) -> State | None:
    """A bucket that was refilled since then may have been full. One that was full then begins its interval anew."""
    start, units = state
    if start > since or now >= start + plan.a:
        return None
    return (now if start == since else start), min(plan.limit, units + cost)


REFUNDS: Final[dict[str, Callable[[State, int, int, Plan, int, int], State | None]]] = {
    "calendar_window": from_window,
    "fixed_window": from_window,
    "sliding_log": from_log,
    "sliding_window": from_sliding_window,
    "interval_bucket": from_interval_bucket,
    "gcra": from_gcra,
}
