"""Refunds that the table of cases cannot show: random histories, foreign values, turns together, no Redis."""

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
from tests.cases import REFUNDABLE, said
from tests.clock import FrozenClock
from tests.servers import RedisServer
from tests.stores.conftest import put_foreign
from tests.strategies import rate_rules, rates

COUNTED = {"count_on": (401, 403)}
LIMITS = st.integers(1, 9) | st.integers(1, 3000)
RULES = rate_rules("rule", rates(LIMITS), COUNTED, LIMITS)
JUMPS = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.integers(0, 2)
each_kind = pytest.mark.parametrize("rule", REFUNDABLE, ids=said)


def take(store: Any, rule: Rule, cost: int = 1, *, commit: bool = True) -> Decision:
    return run(decide_charges((charge(rule, "user:1", cost),), commit=commit), store)


def refund(store: Any, paid: Refund | None) -> bool:
    return run(refund_charges(paid), store)


def left(store: Any, rule: Rule) -> int | None:
    return take(store, rule, commit=False).remaining


def microseconds(jump: Any, rule: Rule) -> int:
    assert rule.rate is not None
    return jump if isinstance(jump, int) else round(jump * rule.rate.window_us)


@given(RULES, st.lists(st.tuples(st.integers(0, 3), JUMPS), max_size=8), st.integers(1, 3))
def test_never_more_than_if_it_had_not_been(rule: Rule, meanwhile: list[tuple[int, Any]], cost: int) -> None:
    """Others may come in between; with what is given back they never get more than without the call at all.

    A penalty has no more effect than an empty budget, so under a rule that has them only what was taken comes back.
    """
    clock = FrozenClock()
    ours, without = MemoryStore(clock), MemoryStore(clock)
    take(ours, rule), take(without, rule)
    paid = take(ours, rule, cost).receipt
    assume(paid is not None)
    for other, jump in meanwhile:
        decisions = [take(store, rule, other) for store in (ours, without)]
        assume(decisions[0].allowed == decisions[1].allowed)  # else the two have lived through different things
        clock.now_us += microseconds(jump, rule)
    before = left(ours, rule) or 0
    refund(ours, paid)
    after, due = left(ours, rule), left(without, rule)
    most = before + cost * rule.factor if rule.count_denied else due
    # An interval begins when a full bucket is first used: one that was never full may be refilled before the other.
    assert before <= (after or 0) <= max(before, most or 0)
    if not meanwhile:
        assert after == due


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Any:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


@pytest.mark.parametrize("rate", ["5/m", "999999/day"])
def test_of_several_turns_the_last_go_back_and_no_two_share_a_moment(store: Any, rate: str) -> None:
    """As where a view's tasks could not be enqueued, while others' were."""
    rule = Rule("queue", rate, max_queue=8, algorithm="leaky_bucket", action="defer")
    turns = [take(store, rule) for _ in range(7)]
    (together,) = joined([turn.paid.turns for turn in turns[4:]])
    assert store.execute(together) == 3
    assert [store.execute(turn.paid.turns) for turn in turns[1:3]] == [0, 0]
    kept = [turns[0], turns[3], *(take(store, rule) for _ in range(3))]
    moments = [decision.outcomes[0].put_off for decision in kept]
    unit = rule.rate.window / rule.rate.limit  # type: ignore[union-attr]
    apart = [later - sooner for sooner, later in pairwise(moments)]
    assert apart == pytest.approx([3 * unit, unit, unit, unit], abs=3e-6)


@each_kind
def test_a_refund_lengthens_no_key_and_fails_on_no_foreign_value(
    rule: Rule, redis_server: RedisServer, redis_url: str
) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    take(store, rule)
    paid, key = take(store, rule).receipt, store.counter_key(rule, "user:1")
    with redis_server.client() as client:
        lives = client.pttl(key)
        refund(store, paid)
        assert 0 < client.pttl(key) <= lives
        for value in ("", "1:x", "9" * 400, {"a": 1}, ["a"]):
            put_foreign(client, key, value)
            assert refund(store, paid), value
        client.flushall()
        refund(store, paid)
        assert client.exists(key) == 0


def test_a_receipt_has_what_was_charged_under_rules_that_count_some_answers(store: Any) -> None:
    counted, plain = REFUNDABLE[0], Rule("plain", "5/m")
    receipt = run(decide_charges((charge(counted, "user:1", 1), charge(plain, "user:1", 1))), store).receipt
    assert receipt is not None
    assert [paid.charge.rule.name for paid in receipt.paid] == [counted.name]
    assert refund_for_status(receipt, 401) is None
    assert refund_for_status(receipt, 200) == receipt
    for rule, cost, commit in ((plain, 1, True), (counted, 0, True), (counted, 1, False)):
        assert take(store, rule, cost, commit=commit).receipt is None
    take(store, counted, 4)
    refused = take(store, replace(counted, count_denied=True))
    assert (refused.allowed, refused.receipt) == (False, None)


async def test_in_batches_of_an_event_loop(redis_url: str, clock: FrozenClock) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    rule = REFUNDABLE[3]
    decisions = await asyncio.gather(*(arun(decide_charges((charge(rule, "user:1", 1),)), store) for _ in range(20)))
    allowed = [decision for decision in decisions if decision.allowed]
    assert len(allowed) == 5
    assert all(await asyncio.gather(*(arun(refund_charges(decision.receipt), store) for decision in allowed)))
    assert left(store, rule) == 5


class TestWithoutRedis:
    """What this process decided by itself goes back to itself; what Redis decided stays charged."""

    @pytest.fixture
    def away(self, redis_server: RedisServer) -> Any:
        return RedisStore("redis://127.0.0.1:1/0")

    @each_kind
    def test_decided_here_given_back_here(self, rule: Rule, away: Any) -> None:
        decisions = [take(away, rule) for _ in range(6)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
        assert decisions[0].degraded and decisions[0].receipt is not None and decisions[0].receipt.locally
        assert refund(away, decisions[0].receipt)
        assert take(away, rule).allowed

    def test_let_through_unasked_was_never_charged(self, away: Any) -> None:
        assert take(away, replace(REFUNDABLE[0], on_store_failure="allow")).receipt is None

    @pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
    def test_what_redis_decided_stays_charged(
        self, on_loop: bool, away: Any, redis_url: str, clock: FrozenClock
    ) -> None:
        there = RedisStore(redis_url, clock=clock, deadline=5.0)
        paid = take(there, REFUNDABLE[0]).receipt
        assert (asyncio.run(arun(refund_charges(paid), away)) if on_loop else refund(away, paid)) is False
        assert left(there, REFUNDABLE[0]) == 4
