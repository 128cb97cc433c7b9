"""What is told of a call that turns out not to count: as if it had not been charged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import answered
from django_throttle.core.flow import refund
from django_throttle.core.refunds import settled
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import run
from tests import strategies
from tests.clock import FrozenClock


def test_an_answer_that_counts_changes_nothing() -> None:
    decision = Limiter([Rule("login", "5/min", count_on=(401,))], MemoryStore(FrozenClock())).acquire("ip:1")
    assert settled(decision, 401) is decision
    assert settled(Decision(), 200) == Decision()


def test_only_of_the_rule_that_counts_so() -> None:
    rules = [Rule("all", "5/min"), Rule("login", rates=("5/min", "9/hour"), count_on=(401,), cost=2)]
    decision = Limiter(rules, MemoryStore(FrozenClock())).acquire("ip:1")
    assert [outcome.remaining for outcome in decision.outcomes] == [4, 3, 7]
    assert [outcome.remaining for outcome in settled(decision, 200).outcomes] == [4, 5, 9]


@pytest.mark.parametrize("used", [4, 9])
def test_what_is_tolerated_beyond_the_limit_is_not_told(used: int) -> None:
    rule = Rule("login", "5/min", algorithm="fixed_window", enforce_at=2, count_on=(401,))
    limiter = Limiter([rule], MemoryStore(FrozenClock()))
    limiter.acquire("ip:1", used)
    (outcome,) = settled(limiter.acquire("ip:1"), 200).outcomes
    assert outcome.remaining == 0


@given(
    strategies.rate_rules("login", strategies.rates(st.integers(1, 30)), {"count_on": (401,)}),
    st.integers(0, 3),
    st.data(),
)
def test_as_the_store_says_afterwards(rule: Rule, before: int, data: st.DataObject) -> None:
    clock = FrozenClock()
    limiter = Limiter([rule], MemoryStore(clock))
    for _ in range(before):
        limiter.acquire("ip:1")
        clock.tick(data.draw(st.floats(0, 1)) * (rule.window or 0))
    decision = limiter.acquire("ip:1")
    told = settled(decision, 200)
    if decision.receipt is not None:
        run(refund(answered(decision.receipt, 200)), limiter.store)
        left = limiter.peek("ip:1", 0)
        assert told.outcomes[0].remaining <= (left.remaining or 0)
        if rule.enforce_at == 1:
            assert told.outcomes[0].remaining == left.remaining
            assert told.outcomes[0].reset_after >= left.reset_after - 0.000002
