"""Prepaid rules on a real Redis: few commands, nothing above the limit, nearly all of it used, and true answers."""

import asyncio
from typing import Any

import pytest

from django_throttle import agent, limiter, signals
from django_throttle.agent import refund_prepaid
from django_throttle.core import Decision, Reason, Rule
from django_throttle.core.algorithms.base import MAX_HOLD_US
from django_throttle.core.commands import Charge
from django_throttle.core.decide import reset_charges
from django_throttle.core.io import run
from django_throttle.core.prepaid import LIMIT_DIVISOR
from django_throttle.exceptions import InvalidCost
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.local import prepaid as local_prepaid
from django_throttle.local.prepaid import SWEEP_SECONDS
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo
from tests.callers import SameByEveryKey
from tests.clock import FrozenClock
from tests.forks import holds_in_child
from tests.inside import commands_to
from tests.servers import RedisServer, wait_until

HOT = Rule("hot", "100000/h", algorithm="fixed_window", prepaid=True)
EXACT = Rule("hot", "100000/h", algorithm="fixed_window")


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    store = RedisStore(redis_url, deadline=5.0)
    agent.disable_for(store)
    store.local_limits.prepaid.clock = FrozenClock()  # units are held for a part of a second
    return store


def used(store: RedisStore, rule: Rule = EXACT, ident: str = "everyone") -> int:
    decision = Limiter([rule], store).peek(ident)
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining


def warm(limiter: Limiter, calls: int = 100) -> list[Decision]:
    return [limiter.acquire("everyone") for _ in range(calls)]


def refund_after(store: RedisStore, seconds: float) -> None:
    budgets = store.local_limits.prepaid
    now = budgets.clock() + seconds
    budgets.clock = lambda: now
    refund_prepaid(store)


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_most_calls_ask_nobody(store: RedisStore, monkeypatch: pytest.MonkeyPatch, on_loop: bool) -> None:
    limits, commands = Limiter([HOT], store), commands_to(store, monkeypatch)
    with asyncio.Runner() as runner:
        acquire = (lambda *given: runner.run(limits.aacquire(*given))) if on_loop else limits.acquire
        assert [acquire("everyone").remaining for _ in range(1000)] == list(range(99_999, 98_999, -1))
        with pytest.raises(InvalidCost):
            acquire("everyone", -1)
    assert len(commands) <= 11
    assert limits.peek("everyone").remaining == 99_000, "what the process holds is in it"
    assert used(store) >= 1000


@pytest.mark.agent
def test_what_is_not_used_goes_back_in_a_second(redis_url: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {}
    store = RedisStore(redis_url, deadline=5.0)
    warm(Limiter([HOT], store))
    assert used(store) > 100
    assert MAX_HOLD_US / 1_000_000 + SWEEP_SECONDS < 1
    wait_until(lambda: used(store) == 100)
    agent.stop_for(store)


def test_receivers_are_told_once(redis_url: str, settings: Any) -> None:
    rule = {"rate": "100/hour", "algorithm": "fixed_window", "prepaid": True, "warn_at": [0.5], "enforce_at": 2.5}
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "RULES": {"h": rule}, "DATABASE_RULES": False}
    told: list[float] = []
    signals.quota_warning.connect(lambda share, **_: told.append(share), weak=False, dispatch_uid="prepaid")
    call = Call("chat", ("request",), SameByEveryKey(), 1)
    decisions = [limiter.decide(call) for _ in range(251)]
    signals.quota_warning.disconnect(dispatch_uid="prepaid")
    assert told == [0.5]
    assert [decision.allowed for decision in decisions] == [True] * 250 + [False], "tolerated to 2.5 times as much"
    assert (decisions[0].limit, decisions[99].remaining, decisions[150].remaining) == (100, 0, 0)


@pytest.mark.usefixtures("servers")
def test_a_child_begins_with_nothing(store: RedisStore) -> None:
    warm(Limiter([HOT], store))
    budgets = store.local_limits.prepaid
    assert budgets.held(Charge(HOT, "everyone", 1)) > 0
    assert holds_in_child(lambda: len(budgets) == 0)


def test_a_prepaid_rule_refuses_before_others_are_charged(store: RedisStore) -> None:
    other = Rule("other", "100/h")
    decisions = warm(Limiter([other, Rule("hot", "3/h", prepaid=True)], store), 5)
    assert [decision.rule for decision in decisions if not decision.allowed] == ["hot"] * 2
    assert [one.rule for one in decisions[0].outcomes] == ["other", "hot"]
    assert used(store, other) == 3


@pytest.mark.agent
def test_a_reset_is_heard_of(redis_url: str, store: RedisStore, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {}
    other = RedisStore(redis_url, deadline=5.0)
    limits = Limiter([Rule("hot", "300/h", algorithm="fixed_window", prepaid=True)], other)
    small = Rule("hot", "300/h", algorithm="fixed_window")
    try:
        assert not warm(limits, 301)[-1].allowed
        run(reset_charges(BlockingIo(store), (Charge(small, "everyone", 0),)))
        wait_until(lambda: limits.acquire("everyone").allowed)
        assert used(store, small) <= 300
    finally:
        agent.stop_for(other)


def test_what_was_bought_under_another_edition_of_the_rule_goes_back(store: RedisStore) -> None:
    clock: Any = store.local_limits.prepaid.clock
    warm(Limiter([HOT], store), 100)
    smaller = Limiter([Rule("hot", "150/h", algorithm="fixed_window", prepaid=True)], store)
    assert not smaller.acquire("everyone").allowed, "as more than that is bought"
    refund_prepaid(store)
    assert used(store) == 100
    clock.tick(2)
    store.refusal_cache.clear()
    assert smaller.acquire("everyone").allowed
    assert sum(decision.allowed for decision in warm(smaller, 100)) == 49


async def test_what_a_cancelled_call_has_bought_is_there_for_others(store: RedisStore, monkeypatch: Any) -> None:
    limits = Limiter([HOT], store)
    execute, asked, go = store.aexecute, asyncio.Event(), asyncio.Event()

    async def slow(command: Any) -> Any:
        answer = await execute(command)
        asked.set()
        await go.wait()
        return answer

    monkeypatch.setattr(store, "aexecute", slow)
    first = asyncio.ensure_future(limits.aacquire("everyone"))
    second = asyncio.ensure_future(limits.aacquire("everyone"))
    await asked.wait()
    first.cancel()
    await asyncio.wait([first])
    go.set()
    assert (await second).allowed
    assert used(store) == 1


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
async def test_without_the_store_the_policy_of_each_rule_decides(policy: str) -> None:
    store = RedisStore("redis://127.0.0.1:1/0", deadline=0.5)
    agent.disable_for(store)
    rule = Rule("hot", "100/h", prepaid=True, on_store_failure=policy)
    limits = Limiter([rule, Rule("other", "50/h"), Rule("damped", "1000/s", algorithm="damper")], store)
    decisions = [limits.acquire("everyone"), *await asyncio.gather(*(limits.aacquire("everyone") for _ in range(9)))]
    expected = (True, policy != "deny", policy == "deny")
    assert {(each.degraded, each.allowed, each.unavailable) for each in decisions} == {expected}
    if policy == "deny":
        assert {each.outcomes[0].reason for each in decisions} == {Reason.STORE_FAILED}


@pytest.mark.usefixtures("servers")
def test_without_the_store_what_is_held_is_spent() -> None:
    rule = Rule("hot", "100000/h", algorithm="fixed_window", prepaid=True, on_store_failure="deny")
    with RedisServer() as server:
        store = RedisStore(server.url, deadline=5.0)
        agent.disable_for(store)
        limits = Limiter([rule], store)
        warm(limits)
    assert limits.acquire("everyone").allowed


def test_a_process_that_is_killed_takes_no_more_than_its_share(store: RedisStore, redis_url: str) -> None:
    limit, rule = 2000, Rule("hot", "2000/h", algorithm="sliding_log", prepaid=True)
    killed = RedisStore(redis_url, deadline=5.0)
    agent.disable_for(killed)
    before = sum(decision.allowed for decision in warm(Limiter([rule], killed), limit // 20))
    passed = before + sum(decision.allowed for decision in warm(Limiter([rule], store), limit))
    assert limit - limit // LIMIT_DIVISOR <= passed <= limit


def test_what_other_rules_refuse_goes_back(store: RedisStore) -> None:
    decisions = warm(Limiter([Rule("other", "2/h"), HOT], store), 5)
    assert [decision.rule for decision in decisions if not decision.allowed] == ["other"] * 3
    refund_after(store, 1.0)
    assert used(store) == 2


def test_a_peek_sees_what_the_process_holds_of_a_budget_that_others_have_used_up(store: RedisStore) -> None:
    limits = Limiter([HOT], store)
    warm(limits)
    held = store.local_limits.prepaid.held(Charge(HOT, "everyone", 1))
    assert Limiter([EXACT], store).acquire("everyone", 100_000 - used(store)).allowed
    decisions = [limits.peek("everyone", cost) for cost in (1, held, held + 1)]
    assert [(each.allowed, each.remaining) for each in decisions] == [(True, held), (True, held), (False, held)]


def test_budgets_are_forgotten_when_nobody_calls_or_there_are_too_many(store: RedisStore, monkeypatch: Any) -> None:
    monkeypatch.setattr(local_prepaid, "MAX_BUDGETS", 2)
    limits, budgets = Limiter([HOT], store), store.local_limits.prepaid
    for ident in ("user:1", "user:2", "user:3"):
        assert all(limits.acquire(ident).allowed for _ in range(100))
    assert len(budgets) == 2
    refund_after(store, 1.0)
    assert [used(store, ident=f"user:{number}") for number in (1, 2, 3)] == [100] * 3
    refund_after(store, 60.0)
    assert len(budgets) == 0


def test_a_rule_that_only_records_asks_about_each_call(store: RedisStore) -> None:
    decisions = warm(Limiter([Rule("hot", "100/h", prepaid=True, action="shadow")], store), 110)
    assert all(decision.allowed for decision in decisions)
    assert [decision.outcomes[0].allowed for decision in decisions] == [True] * 100 + [False] * 10
