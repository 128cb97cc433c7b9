"""Connecting may take longer than a decision may: callers give up in time, and later ones have the connection."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis.credentials import CredentialProvider

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.proxy import Proxy
from tests.servers import RedisServer, need_package, slack

RULE = Rule("api", "1000/hour", on_store_failure="allow")
DEADLINE = 0.4
PATIENCE = 20.0


class Slow(CredentialProvider):
    """Credentials that somebody else's service gives, once it is ``ready``."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.asked = 0
        self.error: Exception | None = None

    def get_credentials(self) -> tuple[str]:
        self.asked += 1
        assert self.ready.wait(slack(PATIENCE))
        if self.error is not None:
            raise self.error
        return ("secret",)


@pytest.fixture
def provider(settings: Any, servers: None) -> Iterator[Slow]:
    """The provider of the cache "provided"."""
    need_package("django_redis")
    slow = Slow()
    with RedisServer() as server, server.client() as admin:
        admin.config_set("requirepass", "secret")
        options = {"CONNECTION_POOL_KWARGS": {"credential_provider": slow}}
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "provided": cache}
        yield slow
        slow.ready.set()


async def until_redis_decides(limiter: Limiter) -> int:
    """Call until Redis decides; returns the number of calls before."""
    async with asyncio.timeout(slack(PATIENCE)):
        number = 0
        while (await limiter.aacquire("user:1")).degraded:
            number += 1
            await asyncio.sleep(0.02)
        return number


async def test_a_server_several_round_trips_away_is_used(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes most of the deadline: a connection that was begun anew for each caller would never be ready."""
    assert not Limiter([RULE], RedisStore(redis_server.url, deadline=PATIENCE)).acquire("user:1").degraded  # the script
    with Proxy(redis_server.port, "delay", 0.6 * DEADLINE) as proxy, caplog.at_level(logging.WARNING):
        limiter = Limiter([RULE], RedisStore(f"{proxy.url}?client_name=far", deadline=DEADLINE))
        assert (await limiter.aacquire("user:1")).degraded
        await until_redis_decides(limiter)
        assert proxy.accepted <= 2, "one connection, that all have waited for"
    (line,) = [record.message for record in caplog.records if record.message.startswith("connecting to Redis took")]
    assert "longer than DEADLINE (400 ms)" in line


async def test_a_slow_credential_provider_holds_neither_the_loop_nor_a_decision(provider: Slow) -> None:
    """As it answers once the decisions are there, each of them has not waited for it."""
    limiter = Limiter([RULE], RedisStore("provided", deadline=DEADLINE))
    calling, ticks = asyncio.ensure_future(limiter.aacquire("user:1")), 0
    while not calling.done():
        ticks += 1
        await asyncio.sleep(0)
    assert (await calling).degraded and ticks > 10
    assert (await asyncio.to_thread(limiter.acquire, "user:1")).degraded
    provider.ready.set()
    await until_redis_decides(limiter)


async def test_one_that_fails_is_a_store_that_is_away(provider: Slow) -> None:
    provider.error = ValueError("no token")
    provider.ready.set()
    limiter = Limiter([RULE], RedisStore("provided", deadline=DEADLINE))
    assert limiter.acquire("user:1").degraded
    assert (await limiter.aacquire("user:1")).degraded
    provider.error = None
    await until_redis_decides(limiter)
