"""Which call brings a rule to a share of its limit, and who is told of it."""

from itertools import pairwise
from typing import Any

import pytest

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import charges_of
from django_throttle.core.decide import decide_charges, drop_reported, reset_charges
from django_throttle.core.io import run
from django_throttle.core.rule import thresholds
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import BlockingIo
from tests.clock import FrozenClock


@pytest.fixture
def store(clock: FrozenClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def call(rule: Rule, store: Any, cost: int = 1, *, commit: bool = True) -> Decision:
    return run(decide_charges(BlockingIo(store), charges_of(rule, "user:1", cost), commit=commit))


def shares(decision: Decision) -> list[float]:
    return [crossing.share for crossing in decision.crossed]


def crossed(rule: Rule, store: MemoryStore, *costs: int) -> list[list[float]]:
    return [shares(call(rule, store, cost)) for cost in costs]


def told(rule: Rule, store: MemoryStore, cost: int = 1) -> list[float]:
    decision = call(rule, store, cost)
    return shares(run(drop_reported(BlockingIo(store), decision))) if decision.crossed else []


def fixed(rate: str = "10/min", *at: float, **options: Any) -> Rule:
    return Rule("quota", rate, algorithm="fixed_window", warn_at=at or (0.8, 1.0), **options)


@pytest.mark.parametrize(
    ("limit", "share", "use"), [(10, 0.8, 8), (100, 0.07, 7), (3, 0.5, 2), (1, 0.8, 1), (10, 2.5, 25), (7, 1.0, 7)]
)
def test_a_share_is_reached_by_whole_units_as_decimals_are_written(limit: int, share: float, use: int) -> None:
    assert thresholds(limit, (share,)) == ((share, use),)


class TestCrossings:
    @pytest.mark.parametrize(
        "options",
        [
            {"algorithm": "fixed_window"}, {"algorithm": "fixed_window", "timezone": "UTC", "rate": "10/hour"},
            {"algorithm": "sliding_log"}, {"algorithm": "sliding_window"},
            {"algorithm": "sliding_window", "resolution": 5, "strict": True}, {"algorithm": "gcra"},
            {"algorithm": "token_bucket", "refill": "interval"}, {"algorithm": "leaky_bucket", "action": "delay"},
        ],
        ids=str,
    )  # fmt: skip
    def test_the_call_that_reaches_a_share_says_so(self, options: dict[str, Any], store: MemoryStore) -> None:
        rule = Rule("quota", **{"rate": "10/min", "warn_at": (0.8, 1.0), **options})
        assert crossed(rule, store, *[1] * 12) == [[]] * 7 + [[0.8], [], [1.0], [], []]

    def test_one_call_may_reach_several(self, store: MemoryStore) -> None:
        assert crossed(fixed("10/min", 0.1, 0.5, 0.8, 1), store, 4, 6) == [[0.1], [0.5, 0.8, 1.0]]

    def test_what_another_rule_refuses_reaches_none(self, store: MemoryStore) -> None:
        both = (*charges_of(fixed(), "user:1", 8), *charges_of(Rule("narrow", "5/min"), "user:1", 8))
        assert run(decide_charges(BlockingIo(store), both)).crossed == ()

    def test_shares_beyond_the_limit_are_of_the_limit(self, store: MemoryStore) -> None:
        rule = fixed("10/min", 1, 2, 2.5, enforce_at=2.5)
        assert crossed(rule, store, 9, 1, 9, 1, 5, 1) == [[], [1.0], [], [2.0], [2.5], []]


class TestFirstTold:
    def test_once_in_a_fixed_window_although_the_budget_was_given_back(
        self, store: MemoryStore, clock: FrozenClock
    ) -> None:
        rule = fixed()
        assert told(rule, store, 8) == [0.8]
        run(reset_charges(BlockingIo(store), charges_of(rule, "user:1", 0)))
        clock.to(59.999)
        assert told(rule, store, 9) == []
        assert told(rule, store) == [1.0]

    def test_afresh_from_the_first_moment_of_the_next_window(self, store: MemoryStore, clock: FrozenClock) -> None:
        rule = fixed("1/s", 1)
        for moment in (0.0, 1.0, 1.999_999, 2.0, 2.999_999, 3.0):
            clock.to(moment)
            assert told(rule, store) == ([] if moment % 1 else [1.0])

    @pytest.mark.parametrize("algorithm", ["sliding_window", "gcra", "sliding_log"])
    def test_once_in_any_window_where_use_goes_up_and_down(
        self, algorithm: str, store: MemoryStore, clock: FrozenClock
    ) -> None:
        rule = Rule("quota", "60/min", algorithm=algorithm, warn_at=(0.8,))
        moments = []
        for second in range(300):
            clock.to(second)
            for _ in range(3):
                moments += [second for _ in told(rule, store)]
        assert moments
        assert all(later - earlier >= 60 for earlier, later in pairwise(moments))
