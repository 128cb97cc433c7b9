"""Memory and Redis tell the same of the same history, whatever the rules, costs and clock steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Charge, Decision, Rule
from django_throttle.core.commands import charge
from django_throttle.core.decide import Flow, decide_charges, reset_charges
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import run
from tests.clock import START, FrozenClock
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates

LIMITS = st.integers(1, 9) | st.integers(1, 10_000)
# Shares of a window: within it, over its edge, far beyond, and back; sometimes one microsecond.
JUMPS = st.integers(-3, 3) | st.floats(-3, 3) | st.floats(0, 1) | st.sampled_from([1.0, 2.0, 0.5, -100.0])
CALLS = st.tuples(
    st.sampled_from(["acquire"] * 6 + ["peek", "reset"]),
    st.integers(0, 3) | st.integers(0, 12_000),  # cost
    st.sampled_from(["user:1", "user:2"]),
    JUMPS,
)


@st.composite
def rulebooks(draw: st.DrawFn) -> tuple[Rule, ...]:
    """One to four rules of any rate algorithm and option; two may share a window and so an edge."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        drawn = draw(rate_rules(f"rule {number}", rates(LIMITS), {"action": draw(ACTIONS)}, LIMITS))
        found.append(drawn)
    return tuple(found)


ACTIONS = st.sampled_from(["reject", "reject", "reject", "shadow"])
HISTORIES = st.lists(CALLS, min_size=1, max_size=25)


@pytest.fixture(scope="module")
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def redis_store(redis_server: RedisServer, clock: FrozenClock) -> RedisStore:
    # Examples are many and quick, so an overloaded machine must not run into the deadline.
    return RedisStore(redis_server.url, clock=clock, prefix="model", deadline=5.0)


def clean(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def flow_of(rules: tuple[Rule, ...], verb: str, cost: int, ident: str) -> Flow[Decision | int]:
    charges = tuple(charge(rule, ident, cost) for rule in rules)
    if verb == "reset":
        return reset_charges(charges)
    return decide_charges(charges, commit=verb == "acquire")


@given(rulebooks(), HISTORIES, st.sampled_from([0, START * 1_000_000]))
def test_both_stores_agree(
    redis_server: RedisServer,
    redis_store: RedisStore,
    clock: FrozenClock,
    rules: tuple[Rule, ...],
    history: list[tuple[str, int, str, Any]],
    start: int,
) -> None:
    clean(redis_server)
    memory = MemoryStore(clock=clock)
    window = rules[0].rate.window if rules[0].rate else 0.0
    clock.now_us = start
    for verb, cost, ident, jump in history:
        there, here = (run(flow_of(rules, verb, cost, ident), store) for store in (redis_store, memory))
        if verb == "reset":  # the key of a log that has run out is there until the server's clock removes it
            logs = sum(rule.algorithm == "sliding_log" for rule in rules)
            assert here <= there <= here + logs, (clock.now_us, ident)
        else:
            assert there == here, (clock.now_us, verb, cost, ident)
        clock.now_us = max(0, clock.now_us + (jump if isinstance(jump, int) else round(jump * window * 1_000_000)))


@given(rulebooks(), HISTORIES)
def test_a_denied_call_leaves_every_key_byte_for_byte(
    redis_server: RedisServer,
    redis_store: RedisStore,
    clock: FrozenClock,
    rules: tuple[Rule, ...],
    history: list[tuple[str, int, str, Any]],
) -> None:
    """The clock does not go back here: a repaired clock is the one thing that a refusal may store."""
    clean(redis_server)
    rules = tuple(rule for rule in rules if not rule.count_denied)
    clock.now_us = clock.start_us
    with redis_server.client(decode_responses=False) as client:
        for verb, cost, ident, jump in history:
            if not rules:
                return
            charges = tuple(charge(rule, ident, cost) for rule in rules)
            before = kept(client, redis_store, charges)
            decision = run(flow_of(rules, verb, cost, ident), redis_store)
            if verb == "peek" or (isinstance(decision, Decision) and not decision.allowed):
                assert kept(client, redis_store, charges) == before
            clock.now_us += abs(jump if isinstance(jump, int) else round(jump * 60_000_000))


def kept(client: Any, store: RedisStore, charges: tuple[Charge, ...]) -> list[bytes | None]:
    return [client.dump(store.counter_key(rule, ident)) for rule, ident, _ in charges]


@given(rate_rules("rule", rates(LIMITS), bursts=LIMITS), st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_retry_after_is_exact_on_redis_too(
    redis_server: RedisServer, redis_store: RedisStore, clock: FrozenClock, rule: Rule, costs: list[int]
) -> None:
    """One microsecond earlier it is refused, then it passes."""
    clean(redis_server)
    clock.now_us = clock.start_us + 12_345_678
    for cost in [*costs, rule.plan.limit]:
        charges = (charge(rule, "user:1", 1)._replace(cost=cost),)
        decision = run(decide_charges(charges), redis_store)
        if decision.retry_after:
            asked_at, wait = clock.now_us, round(decision.retry_after * 1_000_000)
            clock.now_us = asked_at + wait - 1
            assert not run(decide_charges(charges, commit=False), redis_store).allowed
            clock.now_us = asked_at + wait
            assert run(decide_charges(charges, commit=False), redis_store).allowed
            clock.now_us = asked_at
