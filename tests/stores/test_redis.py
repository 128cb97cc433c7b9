"""What only the Redis store can get wrong: scripts, foreign values, immortal keys, round trips, event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from redis import Redis

from django_throttle.core import Decision, Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.denials import NoDenials
from django_throttle.stores.scripts import Form
from tests.clock import FrozenClock
from tests.records import of_rule, written
from tests.servers import wait_until
from tests.stores.conftest import CAP, RATES, commands, put_foreign


@pytest.mark.row("F21")
def test_lost_scripts_cost_one_more_round_trip_and_no_call_twice(
    acquire: Callable[..., Any], client: Redis, figure: Callable[..., None]
) -> None:
    leases = set()
    for left in range(9, -1, -1):
        client.script_flush()
        decision = acquire(*RATES[:4], CAP)
        assert (decision.remaining, decision.degraded) == (left, False)
        leases.add(decision.lease)
    assert len(leases) == 10
    assert not acquire(*RATES[:4]).allowed
    client.script_flush()
    client.config_resetstat()
    counted = [acquire(RATES[-1]).remaining for _ in range(2)]
    found = commands(client)
    figure("round trips of two calls, the first without its script,", found["evalsha"] + found["eval"])
    assert (found["evalsha"], found["eval"], counted) == (2, 1, [6, 5])


FOREIGN = ["", "nan", "-5:3", "1:2:3:4:5:6:7:8:9", "9" * 17 + ":1", "\xff\x00", {"tokens": "5"}, ["a", "b"]]
KINDS = pytest.mark.parametrize("value", ["abc", {"tokens": "5"}, ["a", "b"]], ids=["text", "hash", "list"])


@pytest.mark.row("F25", "F26")
@pytest.mark.parametrize(
    ("rule", "value"),
    [(rule, value) for at, value in enumerate(FOREIGN) for rule in (RATES[at % 5], RATES[(at + 2) % 5])],
    ids=lambda value: value.name if isinstance(value, Rule) else ascii(value),
)
def test_a_foreign_value_counts_as_nothing_and_is_replaced(
    rule: Rule, value: Any, store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, key = Limiter([rule], store), store.counter_key(rule, "user:1")
    put_foreign(client, key, value)
    first = limiter.acquire("user:1")
    assert (first.allowed, first.degraded, first.remaining) == (True, False, rule.plan.limit - 1)
    assert "1 invalid counts in Redis begin at 0" in caplog.text
    caplog.clear()
    assert limiter.acquire("user:1").remaining == rule.plan.limit - 2
    assert caplog.text == "" and client.pttl(key) > 0


@pytest.mark.row("F26")
@pytest.mark.parametrize(("expires", "number"), [(2**52, 2.0**52), (2**53 + 1, 0.0), (2**56 - 1, 999999999.0)])
@pytest.mark.parametrize("rule", RATES, ids=lambda rule: rule.name)
def test_a_value_from_the_far_future_locks_out_for_no_longer_than_the_window(
    rule: Rule, expires: int, number: float, store: RedisStore, client: Redis
) -> None:
    number = number if Form.of(rule.plan).is_large else int(min(number, 2**32 - 1))
    client.set(store.counter_key(rule, "user:1"), written(of_rule(rule, expires, number)), px=60_000)
    decision = Limiter([rule], store).acquire("user:1")
    assert not decision.degraded
    assert decision.retry_after is not None and decision.retry_after <= 2 * 3600


@KINDS
async def test_a_foreign_lease_index_is_replaced_and_fails_no_other_call(
    value: Any, store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, index = Limiter([CAP], store), store.key(CAP.id, "user:1")
    put_foreign(client, index, value)
    assert [limiter.acquire("user:1").remaining for _ in range(2)] == [9, 8]
    put_foreign(client, f"{index}:{store.leases.uid}", value)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(1, 20)))
    assert not any(decision.degraded for decision in decisions)
    assert {decision.remaining for decision in decisions} == {9}
    assert "1 invalid counts in Redis begin at 0" in caplog.text


@pytest.mark.row("F24")
@pytest.mark.parametrize("rule", [*RATES, CAP], ids=lambda rule: rule.name)
def test_an_immortal_key_gets_a_ttl_at_the_next_touch(rule: Rule, store: RedisStore, client: Redis) -> None:
    limiter = Limiter([rule], store)
    store.denials = NoDenials()  # every call is to reach Redis
    limiter.acquire("user:1")
    refusals = 1 if rule is not CAP else 0  # which touch no lease
    for left in range(limiter.peek("user:1").remaining or 0, -refusals, -1):
        keys = [key for key in client.scan_iter("dt:*") if "{p}" not in key]
        for key in keys:
            assert client.persist(key)
        assert limiter.acquire("user:1").allowed is (left > 0)
        assert all(0 < client.pttl(key) <= 2 * 3600_000 + 5000 for key in keys)


@pytest.mark.row("F49")
def test_a_hundred_event_loops_leave_one_client_and_no_connection(
    store: RedisStore, client: Redis, figure: Callable[..., None]
) -> None:
    limiter = Limiter([Rule("many", "1000/h", algorithm="fixed_window")], store)
    base = len(client.client_list())
    decisions = [async_to_sync(limiter.aacquire)("user:1") for _ in range(100)]
    assert [decision.remaining for decision in decisions] == list(range(999, 899, -1))
    figure("clients kept of 100 event loops", len(store.transport.loops))
    assert len(store.transport.loops) <= 1
    wait_until(lambda: len(client.client_list()) <= base)  # fewer when an earlier test's are collected


@pytest.mark.row("F49", "F51")
def test_threads_and_their_event_loops_share_one_store(redis_url: str, figure: Callable[..., None]) -> None:
    limiter = Limiter([Rule("many", "1000/h", algorithm="gcra")], RedisStore(redis_url, deadline=10.0))

    def call(number: int) -> list[Decision]:
        if number % 8:
            return [limiter.acquire("user:1") for _ in range(25)]
        return [asyncio.run(limiter.aacquire("user:1")) for _ in range(25)]

    with ThreadPoolExecutor(64) as threads:
        decisions = list(chain(*threads.map(call, range(64))))
    figure("passed of 1,600 calls in 64 threads, limit 1,000,", sum(decision.allowed for decision in decisions))
    assert (len(decisions), sum(decision.allowed for decision in decisions)) == (1600, 1000)
    assert not any(decision.degraded for decision in decisions)


def test_the_servers_clock_counts_unless_another_is_given(redis_url: str, client: Redis, clock: FrozenClock) -> None:
    seconds, microseconds = client.time()
    reset = Limiter([RATES[0]], RedisStore(redis_url, deadline=5.0)).acquire("user:1").reset_after
    left = 3600 - (seconds + microseconds / 1_000_000) % 3600
    assert abs(reset - left) < 5 or abs(reset - left) > 3595
    assert Limiter([RATES[0]], RedisStore(redis_url, clock=clock, deadline=5.0)).acquire("user:2").reset_after == 3600.0


@pytest.mark.row("F60")
def test_versions_that_store_values_in_another_way_share_none(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = [Limiter([Rule(**each)], store) for each in NAMED]
    for name, algorithm in ALGORITHMS.items():
        monkeypatch.setitem(ALGORITHMS, name, replace(algorithm, layout="999"))
    newer = [Limiter([Rule(**each)], store) for each in NAMED]
    for pair in zip(older, newer, strict=True):
        decisions = [limiter.acquire("user:1") for _ in range(20) for limiter in pair]
        assert sum(decision.allowed for decision in decisions) == 20
        assert not any(decision.degraded for decision in decisions)
    assert caplog.text == ""


NAMED: list[dict[str, Any]] = [
    *({"name": name, "rate": "10/366d", "algorithm": name} for name in ("fixed_window", "sliding_window", "gcra")),
    {"name": "sliding_log", "rate": "10/h", "algorithm": "sliding_log"},
    {"name": "concurrency", "limit": 10, "algorithm": "concurrency"},
]
