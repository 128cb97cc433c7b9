"""Settlements that the table of cases cannot show: several charges, parallel calls, means, and a store that fails."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Refund, Settle, charge, settlement
from django_throttle.core.decide import decide_charges, settle_charges
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import run
from tests.bounds import measured_most
from tests.cases import MEASURED_BUCKETS, MEASURED_WINDOWS, said
from tests.clock import FrozenClock
from tests.servers import RedisServer

KINDS = [*MEASURED_WINDOWS, *MEASURED_BUCKETS]
each_kind = pytest.mark.parametrize("rule", KINDS, ids=said)


def take(store: Any, rule: Rule, cost: int = 10, *, commit: bool = True) -> Decision:
    return run(decide_charges((charge(rule, "user:1", cost),), commit=commit), store)


def correct(store: Any, decision: Decision, used: int) -> Settle | None:
    assert decision.receipt is not None
    settle = settlement([decision.receipt], lambda _: used, "search", secrets.token_hex(4))
    run(settle_charges(settle), store)
    return settle


def left(store: Any, rule: Rule) -> int | None:
    return take(store, rule, 1, commit=False).remaining


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Any:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


@each_kind
def test_several_charges_of_one_call_are_corrected_as_one(rule: Rule, store: Any) -> None:
    first, second = take(store, rule, 10), take(store, rule, 20)
    receipts = [one.receipt for one in (first, second) if one.receipt]
    run(settle_charges(settlement(receipts, lambda _: 7, "search", "both")), store)
    assert left(store, rule) == 93


def test_the_mean_follows_what_calls_come_to(store: Any) -> None:
    rule = Rule("rows", "1000000/min", unit="rows", reserve="mean")

    def mean(used: int) -> int:
        receipt = take(store, rule, 1).receipt
        assert receipt is not None
        (found,) = run(settle_charges(settlement([receipt], lambda _: used, "search", secrets.token_hex(4))), store)
        return found

    assert [mean(80), mean(80)] == [80, 80]
    assert mean(160) == 90
    for _ in range(60):
        last = mean(10)
    assert last == 11  # rounded up


@pytest.mark.row("R07", "B09")
def test_parallel_calls_come_to_the_sum_of_what_they_used(redis_url: str) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    rule = Rule("rows", "1000000/day", unit="rows", algorithm="fixed_window", reserve=10)

    def call(used: int) -> None:
        correct(store, take(store, rule), used)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(200)))
    assert left(store, rule) == 1_000_000 - sum(range(200))


def test_what_is_due_while_redis_is_away_is_owed_to_it(redis_server: RedisServer) -> None:
    rule = Rule("rows", "1000000/day", unit="rows", algorithm="fixed_window", reserve=10)
    store = RedisStore(redis_server.url, prefix="settle away", deadline=5.0)
    assert left(store, rule) == 1_000_000
    decision = take(store, rule)
    assert decision.receipt is not None
    here = Refund(decision.receipt.paid, locally=True)
    run(settle_charges(settlement([here], lambda _: 60, "search", "here")), store)
    store.fallback.flush()
    assert left(store, rule) == 1_000_000 - 60


@each_kind
def test_what_redis_lost_before_it_was_settled(rule: Rule, redis_url: str, redis_server: RedisServer) -> None:
    """Of what is gone nothing goes back, and what is due is charged."""
    store = RedisStore(redis_url, deadline=5.0)
    for used, wanted in ((3, 100), (30, 80)):
        decision = take(store, rule)
        with redis_server.client() as client:
            client.flushall()
            client.script_flush()
        correct(store, decision, used)
        assert left(store, rule) == wanted


@pytest.mark.parametrize("used", [30, 95])
def test_where_redis_is_away_a_call_reserves_no_more_than_the_share_of_its_process(used: int, servers: None) -> None:
    rule = Rule("rows", "100/day", unit="rows", algorithm="fixed_window", reserve=40)
    with RedisServer() as server:
        store = RedisStore(server.url, prefix="small shares", deadline=5.0)
        correct(store, take(store, rule, 40), used)
        assert left(store, rule) == 100 - used
    store.fallback.processes.seen = 10
    away = [take(store, rule, 40) for _ in range(2)]
    assert all(decision.degraded for decision in away)
    assert [decision.allowed for decision in away] == [used == 30, False]
    assert away[0].retry_after is not None


@pytest.fixture(scope="module")
def ticking() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def shared(redis_server: RedisServer, ticking: FrozenClock) -> RedisStore:
    return RedisStore(redis_server.url, clock=ticking, prefix="settle", deadline=5.0)


CALLS = st.tuples(st.integers(1, 60), st.integers(0, 250))
EVENTS = st.lists(CALLS | st.integers(0, 5), max_size=24)


@given(st.sampled_from(KINDS), EVENTS)
@pytest.mark.row("B09")
def test_calls_in_flight_overspend_by_no_more_than_their_reserves_were_wrong(
    redis_server: RedisServer, shared: RedisStore, ticking: FrozenClock, rule: Rule, events: list[Any]
) -> None:
    """A pair begins a call that reserves and comes to so much; a number ends that one of those in flight."""
    with redis_server.client() as client:
        client.flushall()
    stores: list[Any] = [MemoryStore(ticking), shared]
    flying: list[tuple[tuple[int, int], list[Decision]]] = []
    together: list[tuple[int, int]] = []  # in flight when the last one passed
    passed: list[int] = []

    ended: list[int] = []
    over = 0

    def end(number: int) -> None:
        nonlocal over
        (_, used), decisions = flying.pop(number)
        ended.append(used)
        over = max(over, sum(ended) + sum(reserve for (reserve, _), _ in flying) - 100)
        for store, decision in zip(stores, decisions, strict=True):
            correct(store, decision, used)

    for event in events:
        if isinstance(event, int):
            if flying:
                end(event % len(flying))
            continue
        decisions = [take(store, rule, event[0]) for store in stores]
        assert decisions[0] == decisions[1]
        if decisions[0].allowed:
            flying.append((event, decisions))
            together = [call for call, _ in flying]
            passed.append(event[1])
    while flying:
        end(0)
    assert sum(passed) <= measured_most(100, together)
    for store in stores:
        after = take(store, rule, 1, commit=False)
        left = max(0, 100 - sum(passed))
        # A log keeps no more than its limit: what in-flight calls had above it is forgotten.
        assert left <= after.remaining <= left + (over if rule.algorithm == "sliding_log" else 0)
        if rule in MEASURED_BUCKETS:
            assert rule.rate is not None
            assert (after.retry_after or 0) <= 101 * rule.rate.window / rule.rate.limit + 1e-3
