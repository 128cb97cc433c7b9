"""The sliding window: counts of sub-windows. The oldest count is weighted, or counts in full in a strict window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, RuleLike, State, StepResult
from django_throttle.core.texts import translatable


@dataclass(frozen=True, slots=True)
class SlidingWindow(CounterParams):
    """``n`` sub-windows and an older one, which is weighted, or counts in full if ``strict`` is 1.

    State: index of the newest sub-window, counts from the newest to the oldest.
    Source: ClassDojo, "Even better rate limiting"; Cloudflare's counter has n = 1.
    """

    sub_window: int
    n: int
    strict: int = 0
    name, wire_id = "sliding_window", 3

    @property
    def max_count(self) -> int:
        return base.max_count_of(self.limit, self.n)

    @property
    def record_numbers(self) -> int:
        return 2

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        limit, sub_window, n = self.limit, self.sub_window, self.n
        current = now // sub_window
        counts, refused_state = self._slide(state, current)
        rest = sub_window if self.strict else (current + 1) * sub_window - now
        weight = -(-counts[n] * rest // sub_window)
        retry = 0
        if sum(counts[:n]) + weight + cost > limit:
            if counts_denied:
                counts[0] = min(counts[0] + cost, self.max_count)
                refused_state = (current, *counts)
            retry = base.NEVER if cost > limit else self._fits_at(counts, cost, current) - now
        newest = next((age for age, count in enumerate(counts) if count), None)
        remaining = max(0, limit - sum(counts[:n]) - weight)
        return StepResult(
            retry=retry,
            remaining=remaining,
            reset=0 if newest is None else (current + n + 1 - newest) * sub_window - now,
            charged_remaining=remaining - cost,
            charged_reset=(current + n + 1) * sub_window - now,
            charged_state=(current, counts[0] + cost, *counts[1:]) if retry == 0 else None,
            refused_state=refused_state,
        )

    def _slide(self, state: State | None, current: int) -> tuple[list[int], State | None]:
        """Return the n + 1 counts in sub-window ``current``, and a corrected state if the clock went back."""
        if state is None:
            return [0] * (self.n + 1), None
        index, *counts = state
        if index > current:
            return counts, (current, *counts)
        shift = min(current - index, self.n + 1)
        return [0] * shift + counts[: self.n + 1 - shift], None

    def _fits_at(self, counts: list[int], cost: int, current: int) -> int:
        """Return the first time at which ``cost`` fits, if nothing else is charged until then."""
        sub_window, n = self.sub_window, self.n
        for age in range(n + 2):
            room = self.limit - cost - sum(counts[: max(0, n - age)])
            if room < 0:
                continue
            oldest = counts[n - age] if age <= n else 0
            if oldest <= room:
                return (current + age) * sub_window
            if not self.strict:
                return (current + age + 1) * sub_window - room * sub_window // oldest
        raise AssertionError("a cost within the limit fits into an empty window")

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        index, *counts = state
        age = max(0, index - since // self.sub_window)  # if the clock went back, the newest has all counts
        if age >= len(counts):
            return None
        counts[age] = max(0, counts[age] - cost)
        return (index, *counts)

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        index, *counts = state
        for age, count in enumerate(counts):
            yield base.Backfill(count, min(now, (index - age + 1) * self.sub_window - 1))

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        current, n = now // self.sub_window, self.n
        index, *counts = state or (current, *[0] * (n + 1))
        shift = min(max(0, current - index), n + 1)
        counts = [0] * shift + counts[: n + 1 - shift]
        age = max(0, current - backfill.at // self.sub_window)
        if age > n:
            return None
        counts[age] = min(counts[age] + backfill.cost, self.max_count)
        return base.Stored((current, *counts), (current + n + 1) * self.sub_window - now)


class SubWindows(SlidingWindow):
    """A sliding window of several sub-windows, for which scripts use another record layout."""

    __slots__ = ()
    wire_id, lua = 9, "sub_windows.lua"

    @property
    def record_numbers(self) -> int:
        return self.n + 1


def params(rule: RuleLike) -> CounterParams:
    # Rounded up, so that n sub-windows are never shorter than the window.
    sub_window = -(-base.counting_window_us(rule) // rule.resolution)
    kind = SlidingWindow if rule.resolution == 1 else SubWindows
    return kind(base.max_units_of(rule), sub_window, rule.resolution, int(rule.strict), hold_us=base.hold_us_of(rule))


def shape(rule: RuleLike, windows: str) -> tuple[str, ...]:
    steps = translatable("moving on in {steps} steps", steps=rule.resolution) if rule.resolution != 1 else ""
    return steps, translatable("never more in any {window}", window=windows) if rule.strict else ""


SLIDING_WINDOW: Final = base.Algorithm(
    name="sliding_window",
    label="Sliding window",
    help="recommended",
    params=params,
    shape=shape,
    takes=("resolution", "strict"),
    weighs_windows=True,
)
