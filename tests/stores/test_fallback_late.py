"""What was admitted while Redis was away is charged afterwards: by the reference and by the script, alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.core.algorithms import LateCost
from django_throttle.core.commands import Charge, Decide
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.fallback import LateCharge, LateCharges
from tests.clock import FrozenClock
from tests.inside import counters
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates

LIMITS = st.integers(1, 9) | st.integers(1, 3000)
RULES = rate_rules("rule", rates(LIMITS), {}, LIMITS)
JUMPS = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0, 2.0])
EVENTS = st.tuples(st.sampled_from(["acquire", "acquire", "late"]), st.integers(0, 5), JUMPS, st.floats(0, 2))


@pytest.fixture(scope="module")
def ticking() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def redis_store(redis_server: RedisServer, ticking: FrozenClock) -> RedisStore:
    store = RedisStore(redis_server.url, clock=ticking, prefix="late", deadline=5.0)
    store.fallback.local.clock = ticking
    return store


def charge_late(memory: MemoryStore, rule: Rule, cost: int, at: int) -> None:
    """The reference, on the memory store's own state."""
    now = round(memory.clock() * 1_000_000)
    state, expires = counters(memory).get((rule.id, "user:1"), (None, 0))
    plan = memory.calendar.plan_at(rule, now)
    stored = plan.charge_late(state if expires > now else None, now, LateCost(cost, at))
    if stored is not None:
        memory._write((rule.id, "user:1"), stored.state, now + stored.lasts)


@given(RULES, st.lists(EVENTS, min_size=1, max_size=20))
def test_reference_and_script_agree(
    redis_server: RedisServer,
    redis_store: RedisStore,
    ticking: FrozenClock,
    rule: Rule,
    history: list[tuple[str, int, float, float]],
) -> None:
    with redis_server.client() as client:
        client.flushall()
    ticking.to(0)
    memory = MemoryStore(clock=ticking)
    window = rule.window or 1
    for number, (kind, cost, jump, age) in enumerate(history):
        ticking.step(jump * window)
        if kind == "late" and cost:
            at = round((ticking() - age * window) * 1_000_000)
            charge_late(memory, rule, cost, at)
            late = LateCharges("user:1", str(number), (LateCharge(rule, cost, at),))
            (reply,) = redis_store.send([redis_store.fallback.call(late)])
            assert isinstance(reply, int)
        command = Decide((Charge(rule, "user:1", cost),))
        assert redis_store.execute(command) == memory.execute(command)


@given(RULES, st.lists(st.tuples(st.integers(0, 5), JUMPS), min_size=1, max_size=20))
def test_what_was_counted_here_counts_there_at_least_as_much(rule: Rule, history: list[tuple[int, float]]) -> None:
    """Moved from one store to another, a state leaves no more than it left before."""
    clock = FrozenClock()
    here, there = MemoryStore(clock=clock), MemoryStore(clock=clock)
    for cost, jump in history:
        clock.step(jump * (rule.window or 1))
        here.execute(Decide((Charge(rule, "user:1", cost),)))
    peek = Decide((Charge(rule, "user:1", 0),), commit=False)
    before = here.execute(peek)[0].remaining
    now = round(clock() * 1_000_000)
    plan = here.calendar.plan_at(rule, now)
    state, expires = counters(here).get((rule.id, "user:1"), ((), 0))
    for cost, at in plan.late_charges(state, now) if expires > now else ():
        charge_late(there, rule, cost, at)
    assert there.execute(peek)[0].remaining <= before


def test_a_second_time_changes_nothing(redis_url: str) -> None:
    rule: Any = Rule("api", "100/min")
    store = RedisStore(redis_url, deadline=5.0)
    now = round(store.fallback.local.clock() * 1_000_000)
    call = store.fallback.call(LateCharges("user:1", "name", (LateCharge(rule, 30, now),)))
    assert [store.send([call]) for _ in range(3)] == [[1], [0], [0]]
    (answer,) = store.execute(Decide((Charge(rule, "user:1", 1),)))
    assert answer.remaining == 69
