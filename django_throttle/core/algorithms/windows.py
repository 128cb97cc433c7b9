"""Windows: counts, or the times themselves, between then and now."""

from __future__ import annotations

from django_throttle.core.algorithms.step import NEVER, State, Step
from django_throttle.core.plan import Plan
from django_throttle.core.rate import MAX_LIMIT


def fixed_window(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """At most ``limit`` in each epoch-aligned window, so at most twice that in any window. State: start, count."""
    start = now - now % plan.a
    return _window_step(state, now, cost, plan.limit, (start, start + plan.a), counts_denied)


def calendar_window(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """The same between two moments of a calendar. State: start, count. ``now`` is between ``a`` and ``c``."""
    bounds = (plan.a, plan.b) if now < plan.b else (plan.b, plan.c)
    return _window_step(state, now, cost, plan.limit, bounds, counts_denied)


def _window_step(
    state: State | None, now: int, cost: int, limit: int, bounds: tuple[int, int], counts_denied: bool
) -> Step:
    start, finish = bounds
    began, count = state or (start, 0)
    kept = None
    if began < start:
        count = 0
    elif began > start:  # the clock went back: what was counted counts now
        kept = (start, count)
    left = finish - now
    retry = 0
    if count + cost > limit:
        retry = NEVER if cost > limit else left
        if counts_denied:
            count = min(count + cost, MAX_LIMIT)
            kept = (start, count)
    return Step(
        remaining=max(0, limit - count),
        retry=retry,
        reset=left if count else 0,
        charged_reset=left,
        charged=(start, count + cost) if retry == 0 else None,
        kept=kept,
    )


def sliding_log(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """Exactly at most ``limit`` in any window. State: when each unit was taken, oldest first, at most ``limit``."""
    limit, window = plan.limit, plan.a
    taken = [min(at, now) for at in state or () if at > now - window]  # a future one: the clock went back
    kept = tuple(taken) if state and state[-1] > now else None
    retry = 0
    if len(taken) + cost > limit:
        if counts_denied:
            taken = [*taken, *[now] * min(cost, limit)][-limit:]
            kept = tuple(taken)
        retry = NEVER if cost > limit else taken[len(taken) + cost - limit - 1] + window - now
    return Step(
        remaining=max(0, limit - len(taken)),
        retry=retry,
        reset=taken[-1] + window - now if taken else 0,
        charged_reset=window,
        charged=(*taken, *[now] * cost) if retry == 0 else None,
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
