"""Counters that the table of cases cannot show: refunds in parallel and of foreign values, and what a flood empties."""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Rule, decide
from django_throttle.core.commands import Correct, LedgerEntry, charge
from django_throttle.core.decide import decide_charges
from django_throttle.core.io import run
from django_throttle.core.ledger import corrections, settlement
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo, LoopIo
from django_throttle.stores.counters import Counters
from tests.bounds import measured_most
from tests.cases import MEASURED_BUCKETS, MEASURED_WINDOWS, REFUNDABLE, said
from tests.clock import FrozenClock
from tests.inside import counters
from tests.servers import RedisServer
from tests.stores.conftest import put_foreign

each_kind = pytest.mark.parametrize("rule", REFUNDABLE, ids=said)


def take(store: Any, rule: Rule, cost: int = 1, *, commit: bool = True) -> Decision:
    return run(decide_charges(BlockingIo(store), (charge(rule, "user:1", cost),), commit=commit))


def refund(store: Any, entries: tuple[LedgerEntry, ...]) -> bool:
    return run(decide.correct(BlockingIo(store), corrections(entries)))


def left(store: Any, rule: Rule) -> int | None:
    return take(store, rule, commit=False).remaining


@each_kind
def test_a_refund_lengthens_no_key_and_fails_on_no_foreign_value(
    rule: Rule, redis_server: RedisServer, redis_url: str
) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    take(store, rule)
    paid, key = take(store, rule).ledger.entries, store.counter_key(rule, "user:1")
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


@pytest.fixture
def away(redis_server: RedisServer) -> Any:
    return RedisStore("redis://127.0.0.1:1/0")


@each_kind
def test_what_a_process_decided_without_redis_goes_back_to_itself(rule: Rule, away: Any) -> None:
    decisions = [take(away, rule) for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert decisions[0].degraded and all(entry.locally for entry in decisions[0].ledger.entries)
    assert refund(away, decisions[0].ledger.entries)
    assert take(away, rule).allowed
    assert take(away, replace(rule, on_store_failure="allow")).ledger.entries == (), "nor was it ever charged"


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_what_redis_decided_stays_charged_while_it_is_away(
    on_loop: bool, away: Any, redis_url: str, clock: FrozenClock
) -> None:
    there = RedisStore(redis_url, clock=clock, deadline=5.0)
    paid = take(there, REFUNDABLE[0]).ledger.entries
    done = asyncio.run(decide.correct(LoopIo(away), corrections(paid))) if on_loop else refund(away, paid)
    assert done is False
    assert left(there, REFUNDABLE[0]) == 4


KINDS = [*MEASURED_WINDOWS, *MEASURED_BUCKETS]


def reserve(store: Any, rule: Rule, cost: int = 10) -> Decision:
    return take(store, rule, cost)


def correct(store: Any, decision: Decision, used: int) -> Correct | None:
    settle = settlement(decision.ledger.entries, lambda _: used, "search", secrets.token_hex(4))
    run(decide.settle(BlockingIo(store), settle))
    return settle


@pytest.mark.row("R07", "B09")
def test_parallel_calls_come_to_the_sum_of_what_they_used(redis_url: str) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    rule = Rule("rows", "1000000/day", unit="rows", algorithm="fixed_window", reserve=10)

    def call(used: int) -> None:
        correct(store, reserve(store, rule), used)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(200)))
    assert left(store, rule) == 1_000_000 - sum(range(200))


def test_what_is_due_while_redis_is_away_is_owed_to_it(redis_server: RedisServer) -> None:
    rule = Rule("rows", "1000000/day", unit="rows", algorithm="fixed_window", reserve=10)
    store = RedisStore(redis_server.url, prefix="settle away", deadline=5.0)
    assert left(store, rule) == 1_000_000
    decision = reserve(store, rule)
    here = [entry._replace(locally=True) for entry in decision.ledger.entries]
    run(decide.settle(BlockingIo(store), settlement(here, lambda _: 60, "search", "here")))
    store.fallback.flush()
    assert left(store, rule) == 1_000_000 - 60


CALLS = st.tuples(st.integers(1, 60), st.integers(0, 250))
EVENTS = st.lists(CALLS | st.integers(0, 5), max_size=24)


@given(st.sampled_from(KINDS), EVENTS)
@pytest.mark.row("B09")
def test_calls_in_flight_overspend_by_no_more_than_their_reserves_were_wrong(rule: Rule, events: list[Any]) -> None:
    """A pair begins a call that reserves and comes to so much; a number ends that one of those in flight."""
    store = MemoryStore(FrozenClock())
    flying: list[tuple[tuple[int, int], Decision]] = []
    together: list[tuple[int, int]] = []  # in flight when the last one passed
    passed, ended, over = list[int](), list[int](), 0
    for event in [*events, *[0] * len(events)]:
        if isinstance(event, tuple):
            decision = reserve(store, rule, event[0])
            if decision.allowed:
                flying.append((event, decision))
                together = [call for call, _ in flying]
                passed.append(event[1])
        elif flying:
            (_, used), decision = flying.pop(event % len(flying))
            ended.append(used)
            over = max(over, sum(ended) + sum(reserved for (reserved, _), _ in flying) - 100)
            correct(store, decision, used)
    # A log keeps no more than its limit: what in-flight calls had above it is forgotten.
    forgotten = over if rule.algorithm == "sliding_log" else 0
    assert sum(passed) <= measured_most(100, together) + forgotten
    after, due = take(store, rule, commit=False), max(0, 100 - sum(passed))
    assert due <= (after.remaining or 0) <= due + forgotten
    if rule in MEASURED_BUCKETS:
        assert rule.rate is not None
        assert (after.retry_after or 0) <= 101 * rule.rate.window / rule.rate.limit + 1e-3


def test_what_is_spent_is_forgotten_last_and_only_where_room_is_needed() -> None:
    counters = Counters()
    for number in range(100):
        counters.write(("rule", str(number)), (number,), 1, is_spent=number % 3 == 0)
    counters.write(("login", "a"), (1,), 1, is_spent=False)
    counters.make_room(50)
    assert {ident for _, ident in counters} >= {str(number) for number in range(0, 100, 3)}
    counters.make_room(41)
    assert len(counters) == 10, "there is no room for all of them"
    assert ("login", "a") in counters, "idents of one rule make none of another forgotten"


@pytest.mark.row("A20")
def test_who_is_refused_stays_refused_in_a_flood_of_others(clock: FrozenClock) -> None:
    store = MemoryStore(clock=clock, max_entries=2000)
    limiter = Limiter([Rule("login", "3/h")], store)
    assert [limiter.acquire("user:1").allowed for _ in range(4)] == [True] * 3 + [False]
    for number in range(20_000):
        limiter.acquire(f"flood:{number}")
        clock.step(0.001)
        assert len(counters(store)) < 2000, "room is made before the next one needs it"
    assert not limiter.acquire("user:1").allowed
