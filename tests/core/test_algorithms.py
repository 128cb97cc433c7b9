"""Each algorithm against its definition in exact fractions, its bound, and what a double can hold."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms import CounterParams, State, StepResult
from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.algorithms.concurrency import Concurrency
from django_throttle.core.rate import MAX_LIMIT
from tests.clock import START
from tests.strategies import rate_rules, rates

START_US = START * 1_000_000
SMALL = st.integers(1, 12)
# Gaps in shares of a window, so that all ages of what was counted occur, and single microseconds.
GAPS = st.integers(0, 3) | st.fractions(0, 1, max_denominator=60) | st.sampled_from([Fraction(1, 4), Fraction(2), 0])
HISTORY = st.lists(st.tuples(GAPS, st.integers(1, 4)), min_size=1, max_size=40)


def step(rule: Rule, state: State | None, now: int, cost: int) -> StepResult:
    return rule.params.step(state, now, cost, rule.count_denied)


def moments(history: list[tuple[Any, int]], window_us: int) -> list[tuple[int, int]]:
    """(now, cost) of each call; a gap of a whole number is so many microseconds."""
    now, found = START_US, []
    for gap, cost in history:
        now += gap if isinstance(gap, int) else round(gap * window_us)
        found.append((now, cost))
    return found


class FixedModel:
    def __init__(self, params: CounterParams) -> None:
        self.params = params
        self.used: Counter[int] = Counter()

    def room(self, now: int) -> Fraction:
        return Fraction(self.params.limit - self.used[now // self.params.window])

    def charge(self, now: int, cost: int) -> None:
        self.used[now // self.params.numbers[1]] += cost


class SlidingModel(FixedModel):
    """n sub-windows whole, the one before them by the share of it that the window still covers."""

    def room(self, now: int) -> Fraction:
        current, n = now // self.params.sub_window, self.params.n
        share = Fraction((current + 1) * self.params.sub_window - now, self.params.sub_window)
        whole = sum(self.used[current - age] for age in range(n))
        return self.params.limit - whole - self.used[current - n] * (1 if self.params.strict else share)


class BucketModel:
    def __init__(self, params: CounterParams) -> None:
        self.params = params
        self.size = Fraction(params.bucket, params.unit)  # not whole where a longest delay cuts it
        self.level = Fraction(0)
        self.at = START_US

    def room(self, now: int) -> Fraction:
        passed = Fraction((now - self.at) * self.params.fineness, self.params.unit)
        self.level, self.at = max(Fraction(0), self.level - passed), now
        return self.size - self.level

    def charge(self, now: int, cost: int) -> None:
        self.level += cost


class LogModel:
    def __init__(self, params: CounterParams) -> None:
        self.params = params
        self.taken: list[tuple[int, int]] = []

    def room(self, now: int) -> Fraction:
        return Fraction(self.params.limit - sum(cost for at, cost in self.taken if at > now - self.params.window))

    def charge(self, now: int, cost: int) -> None:
        self.taken.append((now, cost))


class IntervalModel:
    """Units come all at once at the end of each interval; a full bucket's interval begins with the next use."""

    def __init__(self, params: CounterParams) -> None:
        self.params = params
        self.units = params.limit
        self.next = 0

    def room(self, now: int) -> Fraction:
        while self.units < self.params.limit and self.next <= now:
            self.units = min(self.params.limit, self.units + self.params.refill_units)
            self.next += self.params.interval
        return Fraction(self.units)

    def charge(self, now: int, cost: int) -> None:
        if self.units == self.params.limit:
            self.next = now + self.params.interval
        self.units -= cost


MODELS: dict[str, Callable[[CounterParams], Any]] = {
    "fixed_window": FixedModel, "sliding_window": SlidingModel, "sliding_log": LogModel,
    "interval_bucket": IntervalModel, "gcra": BucketModel, "gcra_queue": BucketModel,
}  # fmt: skip
PLAIN = rate_rules("rule", rates(SMALL), bursts=SMALL).filter(lambda rule: not rule.count_denied)
# Its bucket is not a whole number of units.
CUT = Rule("rule", Rate(3, 3.001), algorithm="leaky_bucket", action="delay", max_delay=2)


@given(PLAIN, HISTORY)
@example(CUT, [(0, 1), (Fraction(1, 3), 1)])
def test_is_what_its_definition_says(rule: Rule, history: list[tuple[Any, int]]) -> None:
    model = MODELS[rule.params.name](rule.params)
    state: State | None = None
    for now, cost in moments(history, rule.rate.window_us):
        found, room = step(rule, state, now, cost), model.room(now)
        assert (found.retry == 0) == (cost <= room)
        assert found.remaining == max(0, room // 1)
        assert found.refused_state is None
        if found.charged_state is not None:
            state = found.charged_state
            model.charge(now, cost)


def states(rule: Rule) -> st.SearchStrategy[State | None]:
    """Anything that an earlier plan of the same rule, or a clock that went back, may have left."""
    params = rule.params
    counts = st.integers(0, 2 * params.limit) | st.integers(0, MAX_LIMIT)
    if params.name.startswith("gcra"):
        return st.none() | st.tuples(
            st.integers(START_US - 10**6, START_US + 2 * params.bucket // params.fineness),
            st.integers(0, max(0, params.fineness - 1)),
        )
    near = st.integers(START_US - 3 * params.numbers[1], START_US + 3 * params.numbers[1])
    if params.name == "sliding_log":
        calls = st.lists(st.tuples(near, st.integers(1, 2 * params.limit)), min_size=1, max_size=60)
        return st.none() | calls.map(sorted).map(lambda found: tuple(number for call in found for number in call))
    if params.name == "interval_bucket":
        return st.none() | st.tuples(near, st.integers(0, params.limit))
    index = START_US // params.numbers[1]
    if params.name == "fixed_window":
        return st.none() | st.tuples(st.integers(index - 3, index + 3).map(lambda at: at * params.window), counts)
    return st.none() | st.tuples(st.integers(index - 3, index + 3), *[counts] * (params.n + 1))


@given(st.data(), rate_rules("rule", rates()))
def test_retry_is_exact(data: st.DataObject, rule: Rule) -> None:
    state, now = data.draw(states(rule)), START_US + data.draw(st.integers(0, rule.rate.window_us))
    cost = data.draw(st.integers(1, min(rule.params.limit, 5)) | st.integers(1, rule.params.limit + 1))
    found = step(rule, state, now, cost)
    assert 0 <= found.remaining <= rule.params.limit
    if found.retry == NEVER:
        assert cost > rule.params.limit
        return
    assert (found.retry == 0) == (found.charged_state is not None)
    if found.retry:
        left = state if found.refused_state is None else found.refused_state
        assert step(rule, left, now + found.retry, cost).retry == 0
        assert step(rule, left, now + found.retry - 1, cost).retry != 0


@given(st.data(), rate_rules("rule", rates()))
def test_reset_is_when_everything_is_free_again(data: st.DataObject, rule: Rule) -> None:
    state, now = data.draw(states(rule)), START_US + data.draw(st.integers(0, rule.rate.window_us))
    found = step(rule, state, now, 1)
    if found.charged_state is not None:
        assert found.charged_reset > 0
        assert step(rule, found.charged_state, now + found.charged_reset, 1).remaining == rule.params.limit
        state = found.charged_state
    else:
        state = state if found.refused_state is None else found.refused_state
        assert step(rule, state, now + found.reset, 1).remaining == rule.params.limit


@pytest.mark.row("F39")
@given(rate_rules("rule", rates(SMALL), bursts=SMALL), st.lists(st.integers(-300, 300), min_size=1, max_size=30))
def test_a_clock_that_jumps_locks_nobody_out(rule: Rule, jumps: list[int]) -> None:
    now, state = START_US, None
    for jump in jumps:
        now += round(Fraction(jump, 60) * rule.rate.window_us)
        found = step(rule, state, now, 1)
        state = found.charged_state or found.refused_state or state
        # Never longer than the oldest sub-window lives, or a bucket takes to empty.
        _, first, second, third = rule.params.numbers
        longest = second / third + 1 if rule.params.name.startswith("gcra") else first * (second + 2)
        assert 0 <= found.retry <= longest


@pytest.mark.parametrize(
    ("held", "mine", "cost", "expected"),
    [
        (0, False, 1, (5, 0, 0)),
        (4, False, 1, (1, 0, 7)),
        (5, False, 1, (0, 7, 7)),
        (5, True, 1, (0, 0, 7)),
        (9, False, 1, (0, 7, 7)),  # the limit was lowered
        (5, False, 0, (0, 0, 7)),
    ],
)
@pytest.mark.row("B06")
def test_concurrency(held: int, mine: bool, cost: int, expected: tuple[int, int, int]) -> None:
    found = Concurrency(5, 7).step((held, mine), START_US, cost, False)
    assert (found.remaining, found.retry, found.reset) == expected
    assert found.charged_state is None and found.refused_state is None
