"""One Redis for the cache, the channel layer and the limits: ours never disturb theirs, paused, back, or reset."""

from __future__ import annotations

import asyncio
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
from tests.publishing.conftest import CORE, PUBSUB
from tests.servers import RedisServer, need_package
from tests.sockets.guarded import becomes

RULE: dict[str, Any] = {"rate": "1000/h", "events": ["request"], "key": "user", "on_store_failure": "deny"}


@pytest.fixture
def server(servers: None, settings: Any) -> Iterator[RedisServer]:
    """The only Redis of a site."""
    need_package("channels_redis")
    with RedisServer() as server:
        config = {"hosts": [{"address": server.url, "socket_timeout": None}]}
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        settings.CHANNEL_LAYERS = {
            backend.split(".")[1]: {"BACKEND": backend, "CONFIG": config} for backend in (CORE, PUBSUB)
        }
        calm = {"DATABASE_RULES": False, "AGENT": False}
        settings.DJANGO_THROTTLE = {"REDIS": "default", "DEADLINE": 0.1, "RULES": {"api": RULE}, **calm}
        yield server


def clients(server: RedisServer) -> set[str]:
    """The connections that are open, but for the one that asks."""
    with server.client() as client:
        return {row["id"] for row in client.client_list()} - {str(client.client_id())}


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
        await self.send("first")
        await becomes(lambda: self.heard == ["first"])

    async def send(self, text: str) -> None:
        await self.layer.group_send("news", {"type": "news", "text": text})

    async def read(self, channel: str) -> None:
        while True:
            self.heard.append((await self.layer.receive(channel))["text"])

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.layer.flush()


async def chats() -> list[Chat]:
    both = [Chat("core"), Chat("pubsub")]
    for chat in both:
        await chat.start()
    return both


async def test_while_redis_hangs_and_afterwards(server: RedisServer) -> None:
    """Ours gives up, and asks no more; cache and layers wait as they do alone, on the same connections."""
    await sync_to_async(cache.set)("page", "text")
    both, theirs = await chats(), clients(server)
    limiter = Limiter([Rule.from_options("api", RULE)], get_store())
    await becomes(lambda: not limiter.acquire("user:1").degraded)
    assert not (await limiter.aacquire("user:1")).degraded
    server.pause()
    try:
        waiting = [asyncio.ensure_future(sync_to_async(cache.get, thread_sensitive=False)("page"))]
        waiting += [asyncio.ensure_future(chat.send("second")) for chat in both]
        while not get_store().open_breakers:
            assert (await limiter.aacquire("user:1")).degraded
        assert not any(task.done() for task in (*waiting, *(chat.task for chat in both))), "nobody has given up but us"
    finally:
        server.resume()
    text, *_ = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert text == "text"
    for chat in both:
        await becomes(lambda chat=chat: chat.heard == ["first", "second"])
    await becomes(lambda: not limiter.acquire("user:1").degraded)
    assert theirs <= clients(server), "none of their connections was closed"
    for chat in both:
        await chat.end()


@pytest.mark.django_db(transaction=True)  # who is meant is looked up
async def test_our_keys_are_ours_alone(server: RedisServer, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "DEADLINE": 5.0}
    await sync_to_async(cache.set)("user:1", "text")
    both = await chats()
    for chat in both:
        await chat.layer.send("dt.jobs", {"type": "left"})
    await becomes(lambda: not [key for key in keys(server) if key.endswith("$inflight")])  # it confirms what it read
    theirs = keys(server)
    limiter = Limiter([Rule.from_options("api", RULE)], get_store())
    assert (await limiter.aacquire("user:1")).remaining == 999
    ours = keys(server).keys() - theirs.keys()
    assert ours and all(key.startswith("dt:") for key in ours)
    assert theirs and not [key for key in theirs if key.startswith("dt:")]
    await sync_to_async(call_command)("throttle_reset", "user:1", stdout=StringIO())
    assert (await limiter.apeek("user:1")).remaining == 1000
    assert {key: value for key, value in keys(server).items() if not key.startswith("dt:")} == theirs
    for chat in both:
        await chat.end()
