"""Every case of the table, on both stores and both drivers."""

from __future__ import annotations

import asyncio

import pytest

from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import Store
from tests.cases import CASES, Case
from tests.clock import FrozenClock
from tests.play import aplay, play


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock=clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sync(case: Case, store: Store, clock: FrozenClock) -> None:
    play(case, Limiter(case.rules, store), clock)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_async(case: Case, store: Store, clock: FrozenClock) -> None:
    asyncio.run(aplay(case, Limiter(case.rules, store), clock))
