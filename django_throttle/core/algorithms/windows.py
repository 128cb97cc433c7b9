"""Windows: counts, or the times themselves, between then and now."""

from __future__ import annotations

from collections.abc import Iterator

from django_throttle.core.plan import NEVER, Plan, State, Step
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
    """Exactly at most ``limit`` in any window. State: time and cost of each call, oldest first, at most ``limit``."""
    limit, window = plan.limit, plan.a
    calls = [(min(at, now), own) for at, own in _calls(state) if at > now - window]  # a future one: the clock went back
    kept = _log(calls) if state and state[-2] > now else None
    taken = sum(own for _, own in calls)
    retry = 0
    if taken + cost > limit:
        if counts_denied:
            calls = _newest([*calls, (now, min(cost, limit))], limit)
            taken, kept = sum(own for _, own in calls), _log(calls)
        retry = NEVER if cost > limit else _moment_of(calls, taken + cost - limit) + window - now
    return Step(
        remaining=max(0, limit - taken),
        retry=retry,
        reset=calls[-1][0] + window - now if calls else 0,
        charged_reset=window,
        charged=(*_log(calls), now, cost) if retry == 0 else None,
        kept=kept,
    )


def _calls(state: State | None) -> Iterator[tuple[int, int]]:
    return zip(state[::2], state[1::2], strict=True) if state else iter(())


def _log(calls: list[tuple[int, int]]) -> State:
    return tuple(number for call in calls for number in call)


def _newest(calls: list[tuple[int, int]], units: int) -> list[tuple[int, int]]:
    """The last so many units of these calls; the oldest of them may keep a part of its cost."""
    found: list[tuple[int, int]] = []
    for at, own in reversed(calls):
        found.append((at, min(own, units)))
        units -= own
        if units <= 0:
            break
    return found[::-1]


def _moment_of(calls: list[tuple[int, int]], units: int) -> int:
    """When the call was made that took the last of the first so many units."""
    for at, own in calls:
        units -= own
        if units <= 0:
            return at
    raise AssertionError("a log never waits for more than it holds")


def sliding_window(state: State | None, now: int, cost: int, plan: Plan, counts_denied: bool) -> Step:
    """n sub-windows and a weighted (or, strict, whole) oldest one. State: index, newest count … oldest count.

    Source: ClassDojo, "Even better rate limiting"; Cloudflare's counter is n = 1.
    """
    limit, sub_window, n, strict = plan.limit, plan.a, plan.b, plan.c
    current = now // sub_window
    counts, kept = _slide(state, current, n)
    rest = sub_window if strict else (current + 1) * sub_window - now
    weight = -(-counts[n] * rest // sub_window)
    retry = 0
    if sum(counts[:n]) + weight + cost > limit:
        if counts_denied:
            counts[0] = min(counts[0] + cost, MAX_LIMIT)
            kept = (current, *counts)
        retry = NEVER if cost > limit else _wait(counts, cost, plan, current) - now
    newest = next((age for age, count in enumerate(counts) if count), None)
    return Step(
        remaining=max(0, limit - sum(counts[:n]) - weight),
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
            return (current + age + 1) * sub_window - room * sub_window // oldest
    raise AssertionError("an empty window refuses only what never fits")
