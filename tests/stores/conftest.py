"""A Redis store of this test's own, and a look past it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer

RATES = [
    Rule("fixed", "10/h", algorithm="fixed_window"),
    Rule("sliding", "10/h"),
    Rule("sub-windows", "10/h", resolution=6, strict=True),
    Rule("gcra", "10/h", algorithm="gcra"),
    Rule("bucket", "10/h", algorithm="token_bucket", burst=7),
]


CAP = Rule("cap", limit=10, algorithm="concurrency")


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url, deadline=5.0)  # this machine may be busy; nothing here is about deadlines


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as plain:
        yield plain


@pytest.fixture(params=["sync", "async"])
def acquire(request: pytest.FixtureRequest, store: RedisStore) -> Iterator[Callable[..., Any]]:
    """``acquire(*rules)``: one call of user:1 on either driver, all of them on one event loop."""
    if request.param == "sync":
        yield lambda *rules: Limiter(rules, store).acquire("user:1")
        return
    with asyncio.Runner() as runner:
        yield lambda *rules: runner.run(Limiter(rules, store).aacquire("user:1"))


def commands(client: Redis) -> dict[str, int]:
    """How often each command ran since the last ``config resetstat``."""
    stats: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
