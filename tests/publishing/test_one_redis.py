"""One Redis for the cache, the channel layer and the limits: ours never disturb theirs, paused, back, or reset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import channel_layers
from django.core.cache import cache
from django.core.management import call_command

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from testproject.check.standstill import elapsed
from tests.servers import RedisServer, need_package, slack, wait_until
from tests.sockets.guarded import becomes

RULE: dict[str, Any] = {"rate": "1000/h", "events": ["request"], "key": "user", "on_store_failure": "deny"}
DEADLINE = 0.1
HANG = 1.0  # seconds: ten deadlines of ours, and less than the five that the cache's client waits
LAYERS = {"core": "channels_redis.core.RedisChannelLayer", "pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer"}


@pytest.fixture
def server(settings: Any) -> Iterator[RedisServer]:
    """The only Redis of a site."""
    need_package("channels_redis")
    with RedisServer() as server:
        hosts = [{"address": server.url, "socket_timeout": None}]
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        settings.CHANNEL_LAYERS = {
            alias: {"BACKEND": backend, "CONFIG": {"hosts": hosts}} for alias, backend in LAYERS.items()
        }
        calm = {"DATABASE_RULES": False, "AGENT": False}
        settings.DJANGO_THROTTLE = {"REDIS": "default", "DEADLINE": DEADLINE, "RULES": {"api": RULE}, **calm}
        yield server


def clients(server: RedisServer) -> set[str]:
    """The connections that are open, but for the one that asks."""
    with server.client() as client:
        own = str(client.client_id())
        return {row["id"] for row in client.client_list()} - {own}


def keys(server: RedisServer) -> dict[str, bytes]:
    with server.client(decode_responses=False) as client:
        return {key.decode(): client.dump(key) for key in client.scan_iter()}


class Chat:
    """A reader on one of the layers, who waits for a message."""

    def __init__(self, alias: str) -> None:
        self.layer: Any = channel_layers.make_backend(alias)
        self.heard: list[str] = []

    async def start(self) -> None:
        channel = await self.layer.new_channel()
        await self.layer.group_add("news", channel)
        self.task = asyncio.ensure_future(self.read(channel))
        await self.layer.group_send("news", {"type": "news", "text": "first"})
        await becomes(lambda: self.heard == ["first"])

    async def read(self, channel: str) -> None:
        while True:
            self.heard.append((await self.layer.receive(channel))["text"])

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.layer.flush()


async def test_while_redis_hangs_and_afterwards(server: RedisServer) -> None:
    """Ours gives up after 100 ms, and asks no more; cache and layers wait as they do alone, on the same connections."""
    await sync_to_async(cache.set)("page", "text")
    chats = [Chat(alias) for alias in LAYERS]
    for chat in chats:
        await chat.start()
    theirs = clients(server)
    limiter = Limiter([Rule.from_options("api", RULE)], get_store())
    assert not (await limiter.aacquire("user:1")).degraded
    assert not (await sync_to_async(limiter.acquire)("user:1")).degraded

    server.pause()
    try:
        waiting = [asyncio.ensure_future(sync_to_async(cache.get, thread_sensitive=False)("page"))]
        waiting += [
            asyncio.ensure_future(chat.layer.group_send("news", {"type": "news", "text": "second"})) for chat in chats
        ]
        began = time.monotonic()
        while time.monotonic() < began + HANG:
            asked = time.monotonic()
            assert (await limiter.aacquire("user:1")).degraded
            assert elapsed(asked) < slack(DEADLINE + 0.05)
            await asyncio.sleep(0.01)
        assert get_store().open_breakers == 1
        assert not any(task.done() for task in waiting), "nobody has given up but us"
        assert not any(chat.task.done() for chat in chats)
    finally:
        server.resume()
    async with asyncio.timeout(slack(10)):
        text, *_ = await asyncio.gather(*waiting)
        assert text == "text"
        for chat in chats:
            await becomes(lambda chat=chat: chat.heard == ["first", "second"])
    await sync_to_async(wait_until)(lambda: not limiter.acquire("user:1").degraded)
    assert theirs <= clients(server), "none of their connections was closed"
    for chat in chats:
        await chat.end()


@pytest.mark.django_db(transaction=True)  # who is meant is looked up
async def test_our_keys_are_ours_alone(server: RedisServer, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "DEADLINE": 5.0}
    await sync_to_async(cache.set)("user:1", "text")
    chats = [Chat(alias) for alias in LAYERS]
    for chat in chats:
        await chat.start()
        await chat.layer.send("dt.jobs", {"type": "left"})
    await chats[0].layer.group_add("api", await chats[0].layer.new_channel())
    wait_until(lambda: not [key for key in keys(server) if key.endswith("$inflight")])  # it confirms what it has read
    theirs = keys(server)
    limiter = Limiter([Rule.from_options("api", RULE)], get_store())
    assert (await limiter.aacquire("user:1")).remaining == 999
    ours = keys(server).keys() - theirs.keys()
    assert ours and all(key.startswith("dt:") for key in ours)
    assert theirs and not [key for key in theirs if key.startswith("dt:")]

    await sync_to_async(call_command)("throttle_reset", "user:1", stdout=StringIO())
    assert (await limiter.apeek("user:1")).remaining == 1000
    assert {key: value for key, value in keys(server).items() if not key.startswith("dt:")} == theirs
    for chat in chats:
        await chat.end()
