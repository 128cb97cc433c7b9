"""The attempted rate and the factor: design C's words, one test each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.damper.aggregate import (
    EMPTY,
    KEPT,
    Allowance,
    Count,
    attempted,
    factor,
    larger_rate,
    mean_rate,
)

TEN = Allowance(10, 1_000_000)  # 10/s: 60 in a sub-interval
numbers = st.integers(0, 10**9)
counts = st.tuples(*[st.builds(Count, numbers, numbers, numbers)] * KEPT)


def whole(*attempts: int) -> tuple[Count, ...]:
    """Sub-intervals of which everything is known, the one in progress first; the rest are empty."""
    known = tuple(Count(number, number, 0) for number in attempts)
    return (known + EMPTY)[:KEPT]


@pytest.mark.parametrize(
    ("attempted", "allowed", "expected"),
    [(0, 60, 0), (60, 60, 0), (59.9, 60, 0), (120, 60, 0.5), (300, 60, 0.8), (1200, 60, 0.95)],
)
def test_the_factor_leaves_what_is_allowed(attempted: float, allowed: float, expected: float) -> None:
    assert factor(attempted, allowed) == pytest.approx(expected)
    assert attempted * (1 - factor(attempted, allowed)) == pytest.approx(min(attempted, allowed))


def test_fast_takes_the_larger_of_the_last_two() -> None:
    assert larger_rate(whole(100, 300, 900)) == 300
    assert larger_rate(whole(300, 100, 900)) == 300


def test_fast_takes_a_pace_that_chance_does_not_explain() -> None:
    assert larger_rate((Count(1000, 1200, 60_000), *whole(500)[1:])) == 60_000
    assert larger_rate((Count(1000, 6000, 6100), *whole(0)[1:])) == 6000, "5 square roots of it could be chance"


def test_the_average_ignores_a_sub_interval_in_progress_that_is_below_the_others() -> None:
    assert mean_rate(whole(0, 100, 200, 300)) == 200
    assert mean_rate(whole(199, 100, 200, 300)) == 200, "no ripple while it fills up"
    assert mean_rate(whole(600, 100, 200, 300)) == 300, "yet quick on a spike"


@pytest.mark.parametrize("estimator", ["fast", "average"])
def test_nothing_is_said_of_who_keeps_to_the_limit(estimator: str) -> None:
    assert attempted(estimator, whole(60, 60, 60, 60), TEN) == 0
    projected = (Count(60, 900, 900), Count(60, 900, 900), *EMPTY[2:])
    assert attempted(estimator, projected, TEN) == 0, "whatever is expected of the rest"
    assert attempted(estimator, whole(61, 61, 61, 61), TEN) == 61


@given(counts, st.integers(1, 10**7), st.integers(1000, 10**11), st.sampled_from(["fast", "average"]))
def test_the_factor_is_a_share_and_nothing_for_the_conforming(
    counts: tuple[Count, ...], limit: int, window_us: int, estimator: str
) -> None:
    allowance = Allowance(limit, window_us)
    found = factor(attempted(estimator, counts, allowance), allowance.per_sub)
    assert 0 <= found < 1
    if not any(allowance.is_exceeded(count.attempted) for count in counts):
        assert found == 0
