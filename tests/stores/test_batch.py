"""Decisions asked for in one turn of an event loop travel as one script call."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.batch import MOST
from tests.stores.conftest import evaluations

RULES = [
    Rule("bucket", "100/hour", algorithm="gcra"),
    Rule("window", "50/hour"),
    Rule("log", "30/hour", algorithm="sliding_log"),
    Rule("quota", "1000/month", algorithm="fixed_window"),
]


@pytest.mark.parametrize(("calls", "at_once"), [(1, 1), (2, 0)])
async def test_only_calls_that_come_one_after_another_wait_for_no_others(
    calls: int, at_once: int, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, loop = Limiter([RULES[0]], store), asyncio.get_running_loop()
    for _ in range(2):  # the first connects
        await asyncio.gather(*(limiter.aacquire("user:0") for _ in range(calls)))
    posts, seen = Mock(wraps=store.transport.post), []
    monkeypatch.setattr(store.transport, "post", posts)
    asked = [asyncio.create_task(limiter.aacquire("user:1")) for _ in range(calls)]
    loop.call_soon(lambda: seen.append(posts.call_count))  # in the same iteration as they ask
    assert all(decision.allowed for decision in await asyncio.gather(*asked))
    assert (seen, posts.call_count) == ([at_once], 1)


async def test_a_batch_is_bounded(store: RedisStore, client: Redis) -> None:
    limiter = Limiter([RULES[0]], store)
    await limiter.aacquire("user:0")
    before = evaluations(client)
    await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(2 * MOST + 1)))
    assert evaluations(client) - before == 3


async def test_each_is_decided_by_itself_all_of_its_rules_or_none(store: RedisStore) -> None:
    limiter = Limiter(RULES, store)
    decisions = await asyncio.gather(*(limiter.aacquire("user:1") for _ in range(40)))
    assert sum(decision.allowed for decision in decisions) == 30
    assert {decision.rule for decision in decisions if not decision.allowed} == {"log"}
    peek = await limiter.apeek("user:1")
    assert [outcome.remaining for outcome in peek.outcomes] == [70, 20, 0, 970]


async def test_different_rules_and_calls_travel_together(store: RedisStore) -> None:
    limiters = [Limiter([rule], store) for rule in RULES]
    asked = [limiter.aacquire("user:1", cost) for cost in (1, 2, 3) for limiter in limiters]
    decisions = await asyncio.gather(*asked, limiters[0].apeek("user:1"))
    assert [decision.remaining for decision in decisions[8:12]] == [94, 44, 24, 994]
    assert decisions[-1].remaining == 94


async def test_calls_before_and_after_the_calendar_is_known_share_a_batch(redis_url: str) -> None:
    quota = Rule("quota", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin")

    async def after(turns: int, limiter: Limiter) -> bool:
        for _ in range(turns):
            await asyncio.sleep(0)
        return (await limiter.aacquire("user:1")).degraded

    for _ in range(20):  # each begins without knowing what time Redis has
        limiter = Limiter([quota, RULES[0]], RedisStore(redis_url, deadline=5.0, secret="other"))
        found = await asyncio.gather(*(after(turns, limiter) for turns in range(100)))
        assert not any(found)


async def test_a_batch_that_fails_is_one_failure(servers: None) -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    limiter = Limiter([Rule("open", "1/hour", on_store_failure="allow")], store)
    decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(50)))
    assert all(decision.allowed and decision.degraded for decision in decisions)
    assert not store.breaker.is_open
    for _ in range(4):
        await limiter.aacquire("user:1")
    assert store.breaker.is_open
