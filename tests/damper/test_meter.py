"""One meter by the clock: how much of a flood it lets through, what follows a rest, an edit or an outage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Reason, Rule
from django_throttle.local.damper_aggregate import (
    KEPT_SUB_INTERVALS,
    SUB_INTERVAL_SECONDS,
    ZERO_COUNTS,
    Allowance,
    Count,
    attempted,
    factor,
    larger_rate,
    mean_rate,
    shifted,
)
from tests.clock import FrozenClock
from tests.damper.conftest import Away, Process

TEN = Allowance(10, 1_000_000)  # 10/s: 60 in a sub-interval
numbers = st.integers(0, 10**9)
counts = st.tuples(*[st.builds(Count, numbers, numbers, numbers)] * KEPT_SUB_INTERVALS)


def whole(*attempts: int) -> tuple[Count, ...]:
    """Return sub-intervals of which everything is known, the one in progress first; the rest are empty."""
    known = tuple(Count(number, number, 0) for number in attempts)
    return (known + ZERO_COUNTS)[:KEPT_SUB_INTERVALS]


class TestEstimators:
    @pytest.mark.parametrize(
        ("attempted", "allowed", "expected"),
        [(0, 60, 0), (60, 60, 0), (59.9, 60, 0), (120, 60, 0.5), (300, 60, 0.8), (1200, 60, 0.95)],
    )
    def test_the_factor_leaves_what_is_allowed(self, attempted: float, allowed: float, expected: float) -> None:
        assert factor(attempted, allowed) == pytest.approx(expected)
        assert attempted * (1 - factor(attempted, allowed)) == pytest.approx(min(attempted, allowed))

    def test_fast_takes_the_larger_of_the_last_two_or_a_pace_that_chance_does_not_explain(self) -> None:
        assert larger_rate(whole(100, 300, 900)) == larger_rate(whole(300, 100, 900)) == 300
        assert larger_rate((Count(1000, 1200, 60_000), *whole(500)[1:])) == 60_000
        assert larger_rate((Count(1000, 6000, 6100), *whole(0)[1:])) == 6000, "5 square roots of it could be chance"

    def test_the_average_ignores_a_sub_interval_in_progress_that_is_below_the_others(self) -> None:
        assert mean_rate(whole(0, 100, 200, 300)) == 200
        assert mean_rate(whole(199, 100, 200, 300)) == 200, "no ripple while it fills up"
        assert mean_rate(whole(600, 100, 200, 300)) == 300, "yet quick on a spike"

    @pytest.mark.parametrize(("estimator", "long_ago"), [("fast", 0), ("average", pytest.approx(1810 / 3))])
    def test_who_keeps_to_the_limit_has_attempted_nothing(self, estimator: str, long_ago: float) -> None:
        assert attempted(estimator, whole(60, 60, 60, 60), TEN) == 0
        projected = (Count(60, 900, 900), Count(60, 900, 900), *ZERO_COUNTS[2:])
        assert attempted(estimator, projected, TEN) == 0, "whatever is expected of the rest"
        assert attempted(estimator, whole(61, 61, 61, 61), TEN) == 61
        assert attempted(estimator, whole(10, 10, 900, 900), TEN) == long_ago

    @given(counts, st.integers(1, 10**7), st.integers(1000, 10**11), st.sampled_from(["fast", "average"]))
    def test_the_factor_is_a_share_and_nothing_for_the_conforming(
        self, counts: tuple[Count, ...], limit: int, window_us: int, estimator: str
    ) -> None:
        allowance = Allowance(limit, window_us)
        share = factor(attempted(estimator, counts, allowance), allowance.per_sub)
        assert 0 <= share < 1
        if not any(allowance.is_exceeded(count.attempted) for count in counts):
            assert share == 0
        assert shifted(counts, 0) == counts
        assert shifted(counts, 1)[0] == ZERO_COUNTS[0] and shifted(counts, 1)[1].attempted == counts[0].projected
        assert shifted(counts, KEPT_SUB_INTERVALS) == shifted(counts, 1000) == ZERO_COUNTS


class TestFlood:
    @pytest.mark.parametrize("times", [1.2, 20])
    @pytest.mark.row("B10")
    def test_one_process_alone_is_held_to_the_limit(self, process: Process, times: float) -> None:
        assert process.run(2, 100 * times) <= 150, "at once"
        process.run(18, 100 * times)
        assert 97 <= process.run(30, 100 * times) <= 103

    def test_a_refusal_says_when_the_next_factor_comes(self, process: Process, clock: FrozenClock) -> None:
        process.run(4.5, 1000)
        process.flush()
        clock.step(0.5)
        refused = next(decision for _ in range(100) if not (decision := process.attempt()).allowed)
        (outcome,) = refused.outcomes
        assert outcome.reason is Reason.SUPPRESSED and 0.8 < outcome.factor < 1
        assert refused.retry_after == pytest.approx(1.5, abs=0.002), "or sooner, where the local limiter holds"
        assert (refused.limit, refused.remaining, refused.rule) == (100, 0, "account")

    def test_who_comes_back_after_a_rest_is_not_suppressed(self, process: Process, clock: FrozenClock) -> None:
        process.run(20, 500)
        assert process.factor > 0.7
        clock.step(2 * SUB_INTERVAL_SECONDS)
        assert process.factor == 0 and process.attempt().allowed
        process.run(12, 80)
        assert process.run(10, 80) == pytest.approx(80)

    def test_an_edited_rule_holds_at_once_for_what_was_counted(self, process: Process) -> None:
        process.run(20, 500)
        before, old = process.factor, process.rule
        process.rule = Rule("account", "1000/s", algorithm="damper")
        assert before > 0.7 and process.factor == 0
        process.rule = old
        assert process.factor == pytest.approx(before)

    def test_a_rule_that_only_records_suppresses_nobody(self, process: Process) -> None:
        process.rule = Rule("account", "100/s", algorithm="damper", action="shadow")
        assert process.run(10, 500) == pytest.approx(500)
        (outcome,) = process.attempt().outcomes
        assert outcome.shadow and outcome.factor > 0.7

    def test_without_room_in_the_local_limiter_no_factor_makes_any(self, process: Process, clock: FrozenClock) -> None:
        process.rule = Rule("account", "20/min", algorithm="damper")
        while (decision := process.attempt()).allowed:
            clock.step(0.001)
        assert decision.retry_after == pytest.approx(3, abs=0.01), "a call's worth, though the factor comes in two"


class TestReports:
    def test_while_the_store_is_away_the_factor_decays_toward_the_fair_share(
        self, process: Process, store: Away
    ) -> None:
        process.run(20, 400)
        process.limits.processes = 4
        store.is_away = True
        assert process.run(3, 400) == pytest.approx(100, rel=0.1), "a lost report or two change nothing"
        process.run(20, 400)
        assert process.run(10, 400) == pytest.approx(25, rel=0.2)
        assert process.run(30, 20) and process.run(10, 20) == pytest.approx(20), "its share passes"

    def test_while_the_store_is_away_a_rule_that_allows_is_no_stricter(self, process: Process, store: Away) -> None:
        process.rule = Rule("account", "100/s", algorithm="damper", on_store_failure="allow")
        process.limits.processes, store.is_away = 4, True
        process.run(60, 95)
        assert process.run(10, 95) == pytest.approx(95, rel=0.01)

    @pytest.mark.parametrize("time_is_known", [True, False])
    def test_what_was_counted_while_the_store_was_away_is_told_with_its_own_time(
        self, process: Process, store: Away, clock: FrozenClock, time_is_known: bool
    ) -> None:
        store.is_away = not time_is_known
        process.run(1, 10)
        process.flush()
        store.is_away = True
        clock.to(SUB_INTERVAL_SECONDS)
        process.run(SUB_INTERVAL_SECONDS, 20)
        process.run(1, 30)
        process.flush()
        store.is_away = False
        process.flush()
        (reply,) = store.aggregates.damp(store.asked)  # type: ignore[arg-type]
        assert [count.attempted for count in reply.counts] == [31, 120, 10, 0]


@pytest.mark.row("A20")
def test_meters_are_bounded_and_what_they_counted_is_told(clock: FrozenClock) -> None:
    process = Process(clock, store := Away(clock))
    process.limits.cache.max_meters = 10
    for number in range(25):
        process.attempt(f"u{number}")
    assert 8 <= len(process.limits.cache.meters) <= 10
    process.flush()
    told = [report for report in store.asked if report.counts]  # type: ignore[attr-defined]
    assert len(told) == 25, "also of those that had to go"


def test_many_others_end_no_suppression_and_empty_no_full_bucket(clock: FrozenClock) -> None:
    process = Process(clock, Away(clock))
    process.limits.cache.max_meters = 100
    process.run(10, 500)
    factor = process.factor
    while process.attempt("full").allowed:
        pass
    for number in range(1000):
        process.attempt(f"u{number}")
        clock.step(0.000_1)
    assert process.factor == factor > 0.7
    assert sum(process.attempt("full").allowed for _ in range(100)) <= 11, "what has drained in a tenth of a second"
