"""The reference algorithms: pure functions over whole numbers, one for each Lua fragment.

Each takes ``(state, now, cost, plan, counts_denied)``: the stored state or None, the store's time in
microseconds, the cost asked for, the rule's Plan, and whether a refused call is charged too. Each
returns a Step. The fragments in ``stores/lua`` carry the same variable names; one table of cases and
the property tests run on both. Lua computes in doubles, so no product here may pass 2^53.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from django_throttle.core.plan import Plan
from django_throttle.core.rate import MAX_LIMIT

State = tuple[int, ...]
NEVER: Final = -1


class Step(NamedTuple):
    """What an algorithm says; times in microseconds from now.

    ``remaining`` and ``reset`` are before the charge, ``charged_reset`` after it. ``retry`` is 0 when
    the cost fits, NEVER when it cannot. ``kept`` is a state to store although the call is refused:
    a counted denial, or a repaired clock.
    """

    remaining: int
    retry: int
    reset: int
    charged_reset: int
    charged: State | None
    kept: State | None


def fixed_window(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """At most ``limit`` in each epoch-aligned window, so at most twice that in any window. State: index, count."""
    limit, window = plan.limit, plan.a
    current = now // window
    index, count = state or (current, 0)
    kept = None
    if index < current:
        index, count = current, 0
    elif index > current:  # the clock went back: what was counted counts now
        index, kept = current, (current, count)
    retry = 0
    if count + cost > limit:
        retry = NEVER if cost > limit else (index + 1) * window - now
        if counts_denied:
            count = min(count + cost, MAX_LIMIT)
            kept = (index, count)
    left = (index + 1) * window - now
    return Step(
        remaining=max(0, limit - count),
        retry=retry,
        reset=left if count else 0,
        charged_reset=left,
        charged=(index, count + cost) if retry == 0 else None,
        kept=kept,
    )


def sliding_window(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """n sub-windows and a weighted (or, strict, whole) oldest one. State: index, newest count … oldest count.

    Source: ClassDojo, "Even better rate limiting"; Cloudflare's counter is n = 1.
    """
    limit, sub_window, n, strict = plan.limit, plan.a, plan.b, plan.c
    current = now // sub_window
    counts, kept = _slide(state, current, n)
    rest = sub_window if strict else (current + 1) * sub_window - now
    retry = 0
    if not _fits(counts, cost, limit, sub_window, rest):
        if counts_denied:
            counts[0] = min(counts[0] + cost, MAX_LIMIT)
            kept = (current, *counts)
        retry = NEVER if cost > limit else _wait(counts, cost, plan, current) - now
    newest = next((age for age, count in enumerate(counts) if count), None)
    return Step(
        remaining=max(0, limit - sum(counts[:n]) - _weight(counts[n], sub_window, rest)),
        retry=retry,
        reset=0 if newest is None else (current + n + 1 - newest) * sub_window - now,
        charged_reset=(current + n + 1) * sub_window - now,
        charged=(current, counts[0] + cost, *counts[1:]) if retry == 0 else None,
        kept=kept,
    )


def gcra(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """A bucket of ``burst`` that refills evenly. State: theoretical arrival time in microseconds, its fraction.

    Source: the ATM Forum's generic cell rate algorithm; times of a unit are in 1/fineness microseconds,
    so the first and the last unit of a burst are both usable and nothing drifts.
    """
    burst, unit, bucket, fineness = plan.limit, plan.a, plan.b, plan.c
    arrival, fraction = state or (now, 0)
    used = max(0, (arrival - now) * fineness + fraction)
    kept = None
    if used > bucket:  # the clock went back, or the rule became smaller: never owe more than a bucket
        used = bucket
        kept = _arrival(now, used, fineness)
    retry = 0
    if cost > burst or used + cost * unit > bucket:
        if counts_denied:
            used = min(used + min(cost, burst) * unit, bucket)
            kept = _arrival(now, used, fineness)
        retry = NEVER if cost > burst else -(-(used + cost * unit - bucket) // fineness)
    charged = used + cost * unit
    return Step(
        remaining=(bucket - used) // unit,
        retry=retry,
        reset=-(-used // fineness),
        charged_reset=-(-charged // fineness),
        charged=_arrival(now, charged, fineness) if retry == 0 else None,
        kept=kept,
    )


def concurrency(held: int, mine: bool, cost: int, plan: Plan) -> Step:
    """At most ``limit`` leases at once; one that is held already is granted again."""
    limit, ask_again = plan.limit, plan.a
    wanted = 0 if mine else cost
    retry = 0 if held + wanted <= limit else ask_again
    return Step(max(0, limit - held), retry, ask_again if held else 0, ask_again, None, None)


def _slide(state: State | None, current: int, n: int) -> tuple[list[int], State | None]:
    """The n + 1 counts as they stand in sub-window ``current``, and what to keep when the clock went back."""
    if state is None:
        return [0] * (n + 1), None
    index, *counts = state
    if index > current:
        return counts, (current, *counts)
    passed = min(current - index, n + 1)
    return [0] * passed + counts[: n + 1 - passed], None


def _fits(counts: list[int], cost: int, limit: int, sub_window: int, rest: int) -> bool:
    room = limit - cost - sum(counts[:-1])
    return room >= 0 and rest <= _longest(counts[-1], room, sub_window)


def _longest(oldest: int, room: int, sub_window: int) -> int:
    """The most time left in the sub-window at which ``oldest`` weighs no more than ``room``.

    That is floor(room x sub_window / oldest), split so that every product stays below 2^53.
    """
    if oldest <= room:
        return sub_window
    whole, part = divmod(sub_window, oldest)
    return room * whole + room * part // oldest


def _weight(oldest: int, sub_window: int, rest: int) -> int:
    """ceil(oldest x rest / sub_window): estimated in doubles, then put right by the exact test."""
    weight = min(oldest, int(oldest * (rest / sub_window)))
    while weight > 0 and rest <= _longest(oldest, weight - 1, sub_window):
        weight -= 1
    while rest > _longest(oldest, weight, sub_window):
        weight += 1
    return weight


def _wait(counts: list[int], cost: int, plan: Plan, current: int) -> int:
    """The first moment at which ``cost`` fits, if nothing else happens until then."""
    sub_window, n, strict = plan.a, plan.b, plan.c
    for age in range(n + 2):
        room = plan.limit - cost - sum(counts[: max(0, n - age)])
        if room < 0:
            continue
        oldest = counts[n - age] if age <= n else 0
        if oldest <= room:
            return (current + age) * sub_window
        if not strict:
            return (current + age + 1) * sub_window - _longest(oldest, room, sub_window)
    raise AssertionError("an empty window refuses only what never fits")


def _arrival(now: int, used: int, fineness: int) -> State:
    return now + used // fineness, used % fineness


RATE_ALGORITHMS: Final[dict[str, Callable[[State | None, int, int, Plan, bool], Step]]] = {
    "fixed_window": fixed_window,
    "sliding_window": sliding_window,
    "gcra": gcra,
}
