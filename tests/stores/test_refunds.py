"""What goes back of a charge: the same on both stores, never more than was taken, nothing once its window is over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Refund, charge, joined, refund_for_status
from django_throttle.core.decide import decide_charges, refund_charges
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import arun, run
from tests.clock import FrozenClock
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates

COUNTED = {"count_on": (401, 403)}
LIMITS = st.integers(1, 9) | st.integers(1, 3000)
RULES = rate_rules("rule", rates(LIMITS), COUNTED, LIMITS)
JUMPS = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.integers(0, 2)
BACK = st.floats(-2, 0)
CALLS = st.tuples(st.sampled_from(["acquire"] * 3 + ["refund"] * 2 + ["peek"]), st.integers(0, 3), JUMPS | BACK)
KINDS: list[dict[str, Any]] = [
    {"rate": "5/m", "algorithm": "fixed_window"},
    {"rate": "5/h", "algorithm": "fixed_window", "timezone": "Europe/Berlin"},
    {"rate": "5/m", "algorithm": "sliding_log"},
    {"rate": "5/m", "algorithm": "sliding_window"},
    {"rate": "5/m", "algorithm": "sliding_window", "resolution": 4},
    {"rate": "5/m", "algorithm": "sliding_window", "resolution": 4, "strict": True},
    {"rate": "5/m", "algorithm": "gcra"},
    {"rate": "7/m", "algorithm": "gcra", "burst": 5},
    {"rate": "5/m", "algorithm": "token_bucket", "refill": "interval"},
    {"rate": "5/m", "algorithm": "leaky_bucket"},
]
EVERY_KIND = [Rule(f"kind {number}", **kind, **COUNTED) for number, kind in enumerate(KINDS)]  # type: ignore[arg-type]
each_kind = pytest.mark.parametrize("rule", EVERY_KIND, ids=lambda rule: f"{rule.algorithm}-{rule.name[-1]}")


def take(store: Any, rule: Rule, cost: int = 1, *, commit: bool = True) -> Decision:
    return run(decide_charges((charge(rule, "user:1", cost),), commit=commit), store)


def give_back(store: Any, paid: Refund | None) -> bool:
    return run(refund_charges(paid), store)


def left(store: Any, rule: Rule) -> int | None:
    return take(store, rule, commit=False).remaining


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Any:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


@pytest.fixture(scope="module")
def ticking() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, ticking: FrozenClock) -> RedisStore:
    return RedisStore(redis_server.url, clock=ticking, prefix="refunds", deadline=5.0)


@given(RULES, st.lists(CALLS, min_size=1, max_size=20))
def test_both_stores_agree(
    redis_server: RedisServer, shared: RedisStore, ticking: FrozenClock, rule: Rule, history: list[tuple[str, int, Any]]
) -> None:
    with redis_server.client() as client:
        client.flushall()
    ticking.to(0)
    memory = MemoryStore(clock=ticking)
    paid: list[tuple[Refund | None, Refund | None]] = []
    for verb, cost, jump in history:
        if verb == "refund" and paid:
            # Any of them, some of them twice: whoever asks twice gets no more than there is.
            here, there = paid[cost % len(paid)]
            assert here == there
            if here is not None:
                assert shared.execute(here) == memory.execute(here), (here, ticking.now_us)
        else:
            told = [take(each, rule, cost, commit=verb == "acquire") for each in (shared, memory)]
            assert told[0] == told[1], (ticking.now_us, verb, cost)
            paid.append((told[0].receipt, told[1].receipt))
        stands = [take(each, rule, commit=False) for each in (shared, memory)]
        assert stands[0] == stands[1], (ticking.now_us, verb)
        assert 0 <= (stands[0].remaining or 0) <= rule.plan.limit
        by = jump if isinstance(jump, int) else round(jump * rule.rate.window * 1_000_000)  # type: ignore[union-attr]
        ticking.now_us = max(0, ticking.now_us + by)


@given(RULES, st.lists(st.tuples(st.integers(0, 3), JUMPS), max_size=8), st.integers(1, 3))
def test_never_more_than_if_it_had_not_been(rule: Rule, meanwhile: list[tuple[int, Any]], cost: int) -> None:
    """Others may come in between; with what is given back they never get more than without the call at all.

    A penalty has no more effect than an empty budget, so under a rule that has them only what was taken comes back.
    """
    clock = FrozenClock()
    ours, without = MemoryStore(clock), MemoryStore(clock)
    take(ours, rule, 1), take(without, rule, 1)
    paid = take(ours, rule, cost).receipt
    assume(paid is not None)
    for other, jump in meanwhile:
        told = [take(store, rule, other) for store in (ours, without)]
        assume(told[0].allowed == told[1].allowed)  # else the two have lived through different things
        clock.now_us += jump if isinstance(jump, int) else round(jump * rule.rate.window * 1_000_000)  # type: ignore[union-attr]
    before = left(ours, rule)
    give_back(ours, paid)
    after, due = left(ours, rule), left(without, rule)
    most = (before or 0) + cost * rule.factor if rule.count_denied else due
    # An interval begins when a full bucket is first used: one that was never full may be refilled before the other.
    assert (before or 0) <= (after or 0) <= max(before or 0, most or 0)
    if not meanwhile:
        assert after == due


@each_kind
def test_given_back_at_once_it_is_as_if_it_had_not_been(rule: Rule, store: Any) -> None:
    before = [take(store, rule) for _ in range(2)][-1]
    give_back(store, take(store, rule, 3).receipt)
    assert left(store, rule) == before.remaining == rule.plan.limit - 2
    give_back(store, take(store, rule, 3).receipt)
    assert [take(store, rule).allowed for _ in range(4)] == [True] * 3 + [False]


@pytest.mark.parametrize("rate", ["5/m", "7/s", "999999/day"])
class TestTurns:
    """In a queue only the last turn goes back: whoever else waits goes when it was told to."""

    def queue(self, rate: str) -> Rule:
        return Rule("queue", rate, burst=9, algorithm="leaky_bucket", action="delay")

    def test_the_last_goes_back_to_whoever_comes_next(self, store: Any, rate: str) -> None:
        first, second, third = [take(store, self.queue(rate)) for _ in range(3)]
        assert store.execute(third.paid.turns) == 1
        assert take(store, self.queue(rate)).delay == third.delay > second.delay > first.delay == 0

    def test_one_in_the_middle_stays(self, store: Any, rate: str, clock: FrozenClock) -> None:
        rule = self.queue(rate)
        turns = [take(store, rule) for _ in range(4)]
        assert [store.execute(turn.paid.turns) for turn in turns[:3]] == [0, 0, 0]
        assert take(store, rule, commit=False).remaining == 5
        clock.now_us += 1
        fifth = take(store, rule)
        assert fifth.delay == pytest.approx(4 * turns[1].delay, abs=3e-6)

    def test_from_the_end_one_after_the_other(self, store: Any, rate: str, clock: FrozenClock) -> None:
        rule = self.queue(rate)
        turns = [take(store, rule, cost) for cost in (1, 2, 1, 3)]
        clock.now_us += 1
        assert [store.execute(turn.paid.turns) for turn in turns[:0:-1]] == [1, 1, 1]
        assert take(store, rule).delay == pytest.approx(turns[1].delay, abs=3e-6)

    def test_all_at_once_the_newest_first(self, store: Any, rate: str) -> None:
        rule = self.queue(rate)
        turns = [take(store, rule) for _ in range(4)]
        (refund,) = joined([turn.paid.turns for turn in turns])
        assert store.execute(refund) == 4
        assert take(store, rule, commit=False).remaining == 9

    def test_after_one_in_the_middle_no_two_share_a_moment(self, store: Any, rate: str) -> None:
        """As where a view's task could not be enqueued, while others' were."""
        rule = Rule("queue", rate, max_queue=8, algorithm="leaky_bucket", action="defer")
        turns = [take(store, rule) for _ in range(4)]
        assert [store.execute(turn.paid.turns) for turn in turns[1:3]] == [0, 0]
        kept = [turns[0], turns[3], *(take(store, rule) for _ in range(3))]
        moments = [decision.outcomes[0].put_off for decision in kept]
        unit = rule.rate.window / rule.rate.limit  # type: ignore[union-attr]
        apart = [later - sooner for sooner, later in pairwise(moments)]
        assert apart == pytest.approx([3 * unit, unit, unit, unit], abs=3e-6)


@each_kind
def test_a_full_one_stays_full(rule: Rule, store: Any, clock: FrozenClock) -> None:
    paid = take(store, rule, 5).receipt
    assert not take(store, rule).allowed
    for _ in range(3):
        give_back(store, paid)
    assert left(store, rule) == rule.plan.limit
    for _ in range(3):
        clock.step(rule.rate.window)  # type: ignore[union-attr]
        assert left(store, rule) == rule.plan.limit


@each_kind
def test_once_its_window_is_over_nothing_changes(rule: Rule, store: Any, clock: FrozenClock) -> None:
    paid = take(store, rule, 2).receipt
    clock.step(2 * rule.rate.window + 0.5)  # type: ignore[union-attr]
    before = take(store, rule, 3)
    give_back(store, paid)
    assert take(store, rule, commit=False) == before._replace(paid=None)


@each_kind
def test_keys_live_no_longer_for_it(rule: Rule, redis_server: RedisServer, redis_url: str) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    take(store, rule)
    paid = take(store, rule).receipt
    key = store.counter_key(rule, "user:1")
    with redis_server.client() as client:
        lives = client.pttl(key)
        give_back(store, paid)
        assert 0 < client.pttl(key) <= lives
        give_back(store, paid), client.delete(key), give_back(store, paid)
        assert client.exists(key) == 0


FOREIGN = ["", "nan", "1:x", "-1:2", "9" * 400, {"a": 1}, ["a"]]


@each_kind
@pytest.mark.parametrize("value", FOREIGN, ids=range(len(FOREIGN)))
def test_what_somebody_else_left_there_fails_nobody(
    rule: Rule, value: Any, redis_server: RedisServer, redis_url: str
) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    paid = take(store, rule).receipt
    key = store.counter_key(rule, "user:1")
    with redis_server.client() as client:
        client.delete(key)
        match value:
            case str():
                client.set(key, value, ex=60)
            case dict():
                client.hset(key, mapping=value)
            case list():
                client.rpush(key, *value)
        assert give_back(store, paid)
        client.delete(key)


def test_only_what_was_charged_and_only_under_rules_that_count_some_answers(store: Any) -> None:
    counted, plain = EVERY_KIND[0], Rule("plain", "5/m")
    decision = run(decide_charges((charge(counted, "user:1", 1), charge(plain, "user:1", 1))), store)
    assert decision.receipt is not None
    assert [one.charge.rule.name for one in decision.receipt.paid] == [counted.name]
    assert [
        paid and len(paid.paid) for status in (401, 200) for paid in [refund_for_status(decision.receipt, status)]
    ] == [
        None,
        1,
    ]
    assert take(store, plain).receipt is None
    assert take(store, counted, 0).receipt is None
    assert take(store, counted, commit=False).receipt is None
    take(store, counted, 4)
    refused = take(store, replace(counted, count_denied=True))
    assert (refused.allowed, refused.receipt) == (False, None)


def test_a_shadow_gets_back_what_it_recorded(store: Any) -> None:
    shadow = Rule("watched", "1/m", action="shadow", algorithm="fixed_window", **COUNTED)  # type: ignore[arg-type]
    first, second = take(store, shadow), take(store, shadow)
    assert second.allowed and second.receipt is None  # over its limit it records nothing more
    assert give_back(store, first.receipt)
    assert take(store, shadow).outcomes[0].allowed


async def test_without_waiting_on_an_event_loop(redis_url: str, clock: FrozenClock) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    rule = EVERY_KIND[3]
    charges = (charge(rule, "user:1", 1),)
    decisions = await asyncio.gather(*(arun(decide_charges(charges), store) for _ in range(20)))
    allowed = [decision for decision in decisions if decision.allowed]
    assert len(allowed) == 5
    assert all(await asyncio.gather(*(arun(refund_charges(decision.receipt), store) for decision in allowed)))
    assert left(store, rule) == 5


class TestWithoutRedis:
    """What this process decided by itself goes back to itself; what Redis decided stays charged."""

    @pytest.fixture
    def away(self) -> Any:
        return RedisStore("redis://127.0.0.1:1/0")

    @each_kind
    def test_decided_here_given_back_here(self, rule: Rule, away: Any) -> None:
        decisions = [take(away, rule) for _ in range(6)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
        assert decisions[0].degraded and decisions[0].receipt is not None and decisions[0].receipt.locally
        assert give_back(away, decisions[0].receipt)
        assert take(away, rule).allowed

    def test_let_through_unasked_was_never_charged(self, away: Any) -> None:
        assert take(away, replace(EVERY_KIND[0], on_store_failure="allow")).receipt is None

    @pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
    def test_what_redis_decided_stays_charged(
        self, on_loop: bool, away: Any, redis_url: str, clock: FrozenClock
    ) -> None:
        there = RedisStore(redis_url, clock=clock, deadline=5.0)
        paid = take(there, EVERY_KIND[0]).receipt
        assert (asyncio.run(arun(refund_charges(paid), away)) if on_loop else give_back(away, paid)) is False
        assert left(there, EVERY_KIND[0]) == 4
