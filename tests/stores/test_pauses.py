"""Pauses: until when calls are held back, by the clock of the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Pause, pause_id
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock
from tests.stores.conftest import put_foreign

SECOND = 1_000_000
Store = MemoryStore | RedisStore


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


def left(store: Store, lasts: float = 0, ident: str = "host:a") -> float:
    return store.execute(Pause("name", ident, round(lasts * SECOND))) / SECOND


def test_it_lasts_until_the_latest_moment_that_was_said(store: Store, clock: FrozenClock) -> None:
    assert left(store) == 0
    assert left(store, 30) == 30
    clock.to(10)
    assert left(store) == left(store, 5) == 20
    assert left(store, 40.5) == 40.5
    clock.to(50)
    assert left(store) == 0.5
    assert left(store, ident="host:b") == 0
    clock.to(51)
    assert left(store) == 0
    assert left(store, 1) == 1


@pytest.mark.parametrize("value", ["gibberish", "-1", "1e99", "9" * 400, {"field": "value"}])
def test_a_foreign_value_is_replaced(redis_url: str, value: Any) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    client, key = store.transport.client, store.key(pause_id("name"), "host:a")
    put_foreign(client, key, value)
    assert left(store, 30) == 30
    assert 0 < client.pttl(key) <= 30_000
    assert asyncio.run(store.aexecute(Pause("name", "host:a"))) == pytest.approx(30 * SECOND, rel=0.5)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("name", rates=["5/min", "50/h"]),
        Rule("name", "100/s", algorithm="damper"),
        Rule("name", limit=5, algorithm="concurrency"),
    ],
    ids=lambda rule: rule.algorithm,
)
def test_a_reset_ends_it(store: Store, rule: Rule) -> None:
    left(store, 30)
    left(store, 30, ident="host:b")
    assert Limiter([rule], store).reset("host:a") == 1
    assert (left(store), left(store, ident="host:b")) == (0, 30)
