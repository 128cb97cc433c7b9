"""Charges that a process made by itself while the store was away, charged to the store afterwards.

``CHARGES`` reads the state that the process counted in as charges, each a cost and its time: a window or a
sub-window as one charge, at the last moment that it can have been made, a bucket as what it lacks now. ``LATE`` adds
such a charge to a state of the store, whatever the limit; it returns the new state and how long it lasts, or None
where a charge of that time counts no more. All times are in microseconds. ``stores/lua/late.lua`` says the same as
``LATE``; property tests run on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from django_throttle.core.plan import Plan, State
from django_throttle.core.rate import MAX_LIMIT


class Late(NamedTuple):
    """What was charged at a moment, one or more calls together."""

    cost: int
    at: int


class Kept(NamedTuple):
    """A state to store, and for how long."""

    state: State
    lasts: int


def in_window(state: State, now: int, plan: Plan) -> Iterator[Late]:
    start, count = state
    finish = start + plan.a if plan.algorithm == "fixed_window" else now + 1
    yield Late(count, min(now, finish - 1))


def in_sub_windows(state: State, now: int, plan: Plan) -> Iterator[Late]:
    index, *counts = state
    for age, count in enumerate(counts):
        yield Late(count, min(now, (index - age + 1) * plan.a - 1))


def in_log(state: State, now: int, plan: Plan) -> Iterator[Late]:
    for at, cost in zip(state[::2], state[1::2], strict=True):
        yield Late(cost, at)


def in_bucket(state: State, now: int, plan: Plan) -> Iterator[Late]:
    arrival, fraction = state
    used = max(0, (arrival - now) * plan.c + min(fraction, plan.c - 1))
    yield Late(-(-used // plan.a), now)


def in_interval_bucket(state: State, now: int, plan: Plan) -> Iterator[Late]:
    since, units = state
    refilled = max(0, now - since) // plan.a * plan.b
    yield Late(plan.limit - min(plan.limit, units + refilled), now)


CHARGES: Final[dict[str, Callable[[State, int, Plan], Iterator[Late]]]] = {
    "calendar_window": in_window,
    "fixed_window": in_window,
    "sliding_log": in_log,
    "sliding_window": in_sub_windows,
    "interval_bucket": in_interval_bucket,
    "gcra": in_bucket,
}


def to_window(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    return _to_window(state, now, late, now - now % plan.a, now - now % plan.a + plan.a)


def to_calendar_window(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    return _to_window(state, now, late, *((plan.a, plan.b) if now < plan.b else (plan.b, plan.c)))


def _to_window(state: State | None, now: int, late: Late, start: int, finish: int) -> Kept | None:
    if late.at < start:
        return None
    count = state[1] if state and state[0] >= start else 0
    return Kept((start, min(count + late.cost, MAX_LIMIT)), finish - now)


def to_sub_window(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    current, n = now // plan.a, plan.b
    index, *counts = state or (current, *[0] * (n + 1))
    passed = min(max(0, current - index), n + 1)
    counts = [0] * passed + counts[: n + 1 - passed]
    age = max(0, current - late.at // plan.a)
    if age > n:
        return None
    counts[age] = min(counts[age] + late.cost, MAX_LIMIT)
    return Kept((current, *counts), (current + n + 1) * plan.a - now)


def to_log(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    """In the order of time; of more than the limit the newest are kept."""
    if late.at <= now - plan.a:
        return None
    known = list(zip(state[::2], state[1::2], strict=True)) if state else []
    calls = sorted([(min(at, now), cost) for at, cost in [*known, (late.at, late.cost)] if at > now - plan.a])
    kept: list[tuple[int, int]] = []
    room = plan.limit
    for at, cost in reversed(calls):
        if room > 0:
            kept.append((at, min(cost, room)))
        room -= cost
    return Kept(tuple(number for call in reversed(kept) for number in call), plan.a)


def to_bucket(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    """What has flowed out since then is no more in it."""
    arrival, fraction = state or (now, 0)
    used = max(0, (arrival - now) * plan.c + min(fraction, plan.c - 1))
    used = min(plan.b, used + max(0, late.cost * plan.a - max(0, now - late.at) * plan.c))
    return Kept((now + used // plan.c, used % plan.c), -(-used // plan.c)) if used else None


def to_interval_bucket(state: State | None, now: int, late: Late, plan: Plan) -> Kept | None:
    since, units = state or (now, plan.limit)
    since = min(since, now)
    refills = (now - since) // plan.a
    units = min(plan.limit, units + min(refills, -(-plan.limit // plan.b)) * plan.b)
    since = now if units == plan.limit else since + refills * plan.a
    units = max(0, units - late.cost)
    return Kept((since, units), since + -(-(plan.limit - units) // plan.b) * plan.a - now)


LATE: Final[dict[str, Callable[[State | None, int, Late, Plan], Kept | None]]] = {
    "calendar_window": to_calendar_window,
    "fixed_window": to_window,
    "sliding_log": to_log,
    "sliding_window": to_sub_window,
    "interval_bucket": to_interval_bucket,
    "gcra": to_bucket,
}
