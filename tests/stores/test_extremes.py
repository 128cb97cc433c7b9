"""Limits of up to 15 digits, and costs to match: both stores are exact to the unit and the microsecond."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms.gcra import MAX_BUCKET_UNITS
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import START, FrozenClock
from tests.core.test_algorithms import MODELS
from tests.servers import RedisServer

# Where doubles, and the texts that Lua makes of them, begin to lose digits, and their neighbours.
EDGES = [10**14, 2**45, 2**48, 2**49, MAX_LIMIT, 10**12, 2**40, 94_906_266, 3**31]
LIMITS = st.sampled_from(EDGES) | st.integers(10**7, MAX_LIMIT) | st.integers(1, 50).map(lambda exponent: 2**exponent)
NEAR = st.integers(-2, 2)
MILLISECONDS = st.sampled_from([1, 999, 1000, 7001, 60_000, 86_400_000, 30 * 86_400_000, 366 * 86_400_000])
SHARES = st.fractions(0, 1, max_denominator=1000) | st.sampled_from([Fraction(1), Fraction(1, 3), Fraction(0)])
GAPS = st.fractions(0, 2, max_denominator=60) | st.integers(0, 3) | st.sampled_from([Fraction(1), Fraction(1, 2)])
CALLS = st.lists(st.tuples(GAPS, SHARES, NEAR), min_size=1, max_size=8)
KINDS: list[dict[str, Any]] = [
    {"algorithm": "fixed_window"}, {"algorithm": "sliding_window"}, {"algorithm": "sliding_window", "resolution": 7},
    {"algorithm": "sliding_window", "resolution": 30},
    {"algorithm": "sliding_window", "resolution": 3, "strict": True},
    {"algorithm": "token_bucket", "refill": "interval"}, {"algorithm": "gcra"}, {"algorithm": "leaky_bucket"},
]  # fmt: skip


@pytest.fixture(scope="module")
def ticking() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, ticking: FrozenClock) -> RedisStore:
    return RedisStore(redis_server.url, clock=ticking, prefix="extremes", deadline=5.0)


@st.composite
def large_rules(draw: st.DrawFn) -> Rule:
    options = draw(st.sampled_from(KINDS)) | {"count_denied": draw(st.booleans())}
    limit = max(1, min(MAX_LIMIT, draw(LIMITS) + draw(NEAR)))
    if options["algorithm"] in ("gcra", "leaky_bucket"):
        options["burst"] = max(1, min(MAX_BUCKET_UNITS, int(limit * draw(SHARES))))
    try:
        return Rule("rule", Rate(limit, draw(MILLISECONDS) / 1000), **options)
    except InvalidRule:  # a burst that takes longer than a store can count
        assume(False)
        raise


@given(large_rules(), CALLS)
@example(Rule("rule", f"{MAX_LIMIT}/30d"), [(0, Fraction(1), 0), (Fraction(3, 2), Fraction(1, 3), 0)])
@example(Rule("rule", "1000000000/day"), [(0, Fraction(1), 0), (Fraction(13, 10), Fraction(1, 7), 1)])
def test_both_stores_are_exact(
    redis_server: RedisServer,
    shared: RedisStore,
    ticking: FrozenClock,
    rule: Rule,
    calls: list[tuple[Any, Fraction, int]],
) -> None:
    """Against the definition in fractions, and each other; and so is the time to wait."""
    with redis_server.client() as client:
        client.flushall()
    ticking.now_us = START * 1_000_000
    memory = MemoryStore(clock=ticking)
    here, there = Limiter([rule], memory), Limiter([rule], shared)
    model, window = MODELS[rule.params.name](rule.params), rule.rate.window_us  # type: ignore[union-attr]
    for gap, share, near in calls:
        ticking.now_us += gap if isinstance(gap, int) else round(gap * window)
        cost = max(1, int(rule.params.limit * share) + near)
        room = model.room(ticking.now_us)
        decision = there.acquire("user:1", cost)
        assert decision == here.acquire("user:1", cost)
        if rule.count_denied:
            continue
        assert decision.allowed == (cost <= room)
        if decision.allowed:
            model.charge(ticking.now_us, cost)
        assert decision.remaining == max(0, model.room(ticking.now_us) // 1)
        if decision.retry_after:
            asked = ticking.now_us
            for later, passes in ((0, True), (-1, False)):
                ticking.now_us = asked + round(decision.retry_after * 1_000_000) + later
                assert there.peek("user:1", cost).allowed == here.peek("user:1", cost).allowed == passes
            ticking.now_us = asked
