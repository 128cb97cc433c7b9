"""Async clients live as long as their loop, stay in their process, and connect as the synchronous one does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.credentials import UsernamePasswordCredentialProvider

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, clients
from tests.forks import holds_in_child
from tests.inside import lock_of
from tests.servers import RedisServer, need_package

RULES = [Rule("rate", "1000/hour"), Rule("cap", limit=1000, algorithm="concurrency")]


@pytest.mark.row("F50")
def test_a_child_forgets_its_parent_s_clients(redis_url: str, servers: None) -> None:
    limiter = Limiter([RULES[0]], RedisStore(redis_url, deadline=5.0))
    store: Any = limiter.store

    async def use_and_fork() -> tuple[bool, bool]:
        await limiter.aacquire("user:1")
        is_forgotten = holds_in_child(lambda: len(store.transport.loops) == len(clients._lives) == 0)
        return is_forgotten, (await limiter.aacquire("user:1")).degraded

    assert asyncio.run(use_and_fork()) == (True, False)


def test_a_child_of_one_that_was_just_connecting_can_connect(redis_url: str, servers: None) -> None:
    limiter = Limiter([RULES[0]], RedisStore(redis_url, deadline=5.0))
    with lock_of(clients):
        assert holds_in_child(lambda: not asyncio.run(limiter.aacquire("user:1")).degraded)


def test_credentials_that_are_provided_are_asked_for_on_both_drivers(settings: Any, servers: None) -> None:
    need_package("django_redis")
    with RedisServer() as server, server.client() as admin:
        admin.config_set("requirepass", "secret")
        options = {
            "CONNECTION_POOL_KWARGS": {"credential_provider": UsernamePasswordCredentialProvider(None, "secret")}
        }
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "provided": cache}
        limiter = Limiter([RULES[0]], RedisStore("provided", deadline=5.0))
        assert not limiter.acquire("user:1").degraded
        assert not asyncio.run(limiter.aacquire("user:1")).degraded
