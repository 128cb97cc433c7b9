"""Damper rules through the facade: on both stores, alone and beside exact rules."""

import asyncio
import random
from typing import Any

import pytest

from django_throttle import agent
from django_throttle.core import Decision, Rule
from django_throttle.exceptions import StoreError
from django_throttle.limiter import Limiter
from django_throttle.local.limits import flush
from django_throttle.stores import AnyStore, RedisStore
from tests.clock import FrozenClock
from tests.damper.test_processes import counted
from tests.servers import slack, wait_until

DAMPER = Rule("account", "100/s", algorithm="damper")
EXACT = Rule("calls", "1000/day", algorithm="fixed_window")


@pytest.fixture
def store(each_store: AnyStore) -> AnyStore:
    each_store.local_limits.chance = random.Random(7).random
    return each_store


def report(store: Any) -> None:
    """Report to Redis; the store in memory does so itself when it is time."""
    if isinstance(store, RedisStore):
        flush(store.local_limits, store.aggregator)


def flood(limiter: Limiter, clock: FrozenClock, seconds: float, rate: float) -> list[Decision]:
    decisions = []
    for number in range(round(seconds * rate)):
        clock.step(1 / rate)
        if number % round(2 * rate) == 0:
            report(limiter.store)
        decisions.append(limiter.acquire("user:1"))
    return decisions


def test_what_a_damper_suppresses_is_charged_nowhere(store: AnyStore, clock: FrozenClock) -> None:
    limiter, exact = Limiter([DAMPER, EXACT], store), Limiter([EXACT], store)
    decisions = flood(limiter, clock, 1, 500)
    passed = sum(decision.allowed for decision in decisions)
    assert passed == pytest.approx(190, abs=2), "the limit, and what the local limiter lets through at once"
    assert exact.peek("user:1").remaining == 1000 - passed
    assert [len(decision.outcomes) for decision in (decisions[0], decisions[-1])] == [2, 1]
    assert decisions[0].outcomes[0].rule == "account" and decisions[0].rule == "account"


def test_what_another_rule_refuses_is_attempted_all_the_same(store: AnyStore, clock: FrozenClock) -> None:
    limiter = Limiter([Rule("one", "1/day", algorithm="fixed_window"), DAMPER], store)
    decisions = flood(limiter, clock, 20, 90)
    assert sum(decision.allowed for decision in decisions) == 1
    assert decisions[-1].rule == "one" and [outcome.allowed for outcome in decisions[-1].outcomes] == [False, True]
    flood(Limiter([DAMPER], store), clock, 12, 90)
    assert limiter.peek("user:1").outcomes[1].factor == 0
    flood(limiter, clock, 12, 300)
    assert limiter.peek("user:1").outcomes[-1].factor > 0.5


@pytest.mark.parametrize("prefix", ["", "a"])
def test_a_reset_reaches_every_process(prefix: str, redis_url: str, clock: FrozenClock) -> None:
    here, there = (RedisStore(redis_url, clock=clock, deadline=5.0) for _ in range(2))
    limiters = [Limiter([DAMPER], store) for store in (here, there)]
    for limiter in limiters:
        flood(limiter, clock, 7, 500)
    assert min(limiter.peek("user:1").outcomes[0].factor for limiter in limiters) > 0.5
    removed: Any = getattr(limiters[0], f"{prefix}reset")("user:1")
    assert (asyncio.run(removed) if prefix else removed) == 3, "sub-intervals"
    outcome = limiters[0].acquire("user:1").outcomes[0]
    assert (outcome.allowed, outcome.factor, outcome.remaining) == (True, 0, 100)
    limiters[1].acquire("user:1")
    report(there)
    assert limiters[1].peek("user:1").outcomes[0].factor == 0


@pytest.mark.usefixtures("redis_server")
def test_without_redis_nothing_waits_and_only_a_reset_fails(clock: FrozenClock) -> None:
    limiter = Limiter([DAMPER], RedisStore("redis://127.0.0.1:1/0", clock=clock))
    decision = limiter.acquire("user:1")
    assert decision.allowed and not decision.degraded
    with pytest.raises(StoreError):
        limiter.reset("user:1")


@pytest.mark.agent
def test_the_agent_reports(redis_url: str) -> None:
    store = RedisStore(redis_url)
    store.local_limits.interval = 0.5
    limiter = Limiter([DAMPER], store)
    for _ in range(30):
        limiter.acquire("user:1")
    wait_until(lambda: counted(redis_url, DAMPER) == 30, timeout=slack(5))
    assert store.local_limits.due_at > store.local_limits.clock() - 1
    limiter.acquire("user:1", 12)
    agent.stop()
    assert counted(redis_url, DAMPER) == 42, "and what was left, at the end"
