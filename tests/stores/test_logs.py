"""A log has one entry for each call, whatever it cost: exact, small, and quick for Redis to write and to search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock
from tests.servers import RedisServer

LOGS = st.builds(
    lambda limit, denied, at: Rule(
        "log", f"{limit}/min", algorithm="sliding_log", count_denied=denied, enforce_at=at, count_on=(200,)
    ),
    st.integers(1, 40) | st.integers(1, 5000),
    st.booleans(),
    st.sampled_from([1.0, 1.5]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire"] * 4 + ["peek", "refund", "limit"]),
        st.integers(0, 6) | st.integers(0, 6000),
        st.floats(0, 1.2) | st.just(0.0) | st.floats(-1, 0),
    ),
    min_size=1,
    max_size=25,
)


@pytest.fixture
def redis(redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


@given(LOGS, STEPS)
def test_both_stores_agree_whatever_calls_cost(
    redis_server: RedisServer, rule: Rule, steps: list[tuple[str, int, float]]
) -> None:
    """Costs of one and of thousands, refunds, other limits, and a clock that goes back; the wait is exact."""
    clock = FrozenClock()
    with redis_server.client() as client:
        client.flushall()
    stores: list[Any] = [MemoryStore(clock), RedisStore(redis_server.url, clock=clock, prefix="logs", deadline=5.0)]
    receipts: list[list[Any]] = []
    for verb, cost, jump in steps:
        if verb == "refund" and receipts:
            here, there = receipts[cost % len(receipts)]
            assert here == there
            assert here is None or stores[0].execute(here) == stores[1].execute(there)
        elif verb == "limit":
            rule = Rule("log", f"{cost + 1}/min", algorithm="sliding_log", count_denied=rule.count_denied)
        elif verb == "peek":
            told = [Limiter([rule], store).peek("user:1", cost) for store in stores]
            assert told[0] == told[1]
        else:
            told = [Limiter([rule], store).acquire("user:1", cost) for store in stores]
            assert told[0] == told[1]
            receipts.append([decision.receipt for decision in told])
            if told[0].retry_after and cost:
                asked = clock.now_us
                for later, passes in ((0, True), (-1, False)):
                    clock.now_us = asked + round(told[0].retry_after * 1_000_000) + later
                    assert [Limiter([rule], store).peek("user:1", cost).allowed for store in stores] == [passes] * 2
                clock.now_us = asked
        clock.now_us = max(0, clock.now_us + round(jump * 60_000_000))
