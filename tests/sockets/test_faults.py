"""Whatever fails around a socket, its slot comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from channels.layers import InMemoryChannelLayer

from django_throttle import stores
from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.connections.refresher import Refresher
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.consumers import TWO_SOCKETS, held, opened
from tests.doors import Enforce, enforcer
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.sockets.visitor import PATIENCE, until

enforce = pytest.fixture(enforcer)
MANY = {**TWO_SOCKETS, "limit": 1000}


class Broken(Exception):
    """What fails here."""


class BrokenLayer(InMemoryChannelLayer):
    """It is away by the time a socket leaves its groups."""

    async def group_discard(self, group: str, channel: str) -> None:
        raise Broken


class Grouped(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    throttle_scope, groups = "chat", ["lobby"]


class SyncGrouped(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope, groups = "chat", ["lobby"]


class Leaving(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    """Its own disconnect fails, and never gets to super()."""

    throttle_scope = "chat"

    async def disconnect(self, code: int) -> None:
        raise Broken


class SyncLeaving(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"

    def disconnect(self, code: int) -> None:
        raise Broken


class Overriding(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    """Takes the disconnect itself, without super() and without ending."""

    throttle_scope = "chat"

    async def websocket_disconnect(self, message: Any) -> None:
        raise Broken


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """No consumer at all."""
    await receive()
    await send({"type": "websocket.accept"})
    await receive()
    raise Broken


FAILING = {
    "a layer": Grouped.as_asgi(),
    "a layer, sync": SyncGrouped.as_asgi(),
    "disconnect": Leaving.as_asgi(),
    "disconnect, sync": SyncLeaving.as_asgi(),
    "websocket_disconnect": Overriding.as_asgi(),
    "an application": ThrottleMiddleware(bare, scope="chat"),
}


@pytest.mark.parametrize("app", FAILING.values(), ids=FAILING.keys())
async def test_f47_whatever_fails_as_a_socket_ends(enforce: Enforce, settings: Any, app: Any) -> None:
    """A thousand of them in all."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "tests.sockets.test_faults.BrokenLayer"}}
    store = enforce(sockets=MANY)
    communicators = [await opened(app) for _ in range(170)]
    assert held(store) == 170
    for communicator in communicators:
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
    ended = await asyncio.gather(*(each.future for each in communicators), return_exceptions=True)
    assert {type(each) for each in ended} == {Broken}
    assert held(store) == 0


async def test_f48_cancelled_at_any_moment(
    enforce: Enforce, redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty sockets, whose answers from Redis take 0.2 s, ended one after the other as they come and go."""
    enforce(sockets=MANY)
    rule = Rule.from_options("sockets", MANY)
    with Proxy(redis_server.port) as proxy:
        store = RedisStore(proxy.url, deadline=5.0)
        monkeypatch.setattr(stores, "_store", store)
        limiter = Limiter([rule], store)
        await limiter.apeek("everyone")  # connected, and knows its scripts
        proxy.set("delay", 0.2)
        sockets = [asyncio.create_task(come_and_go()) for _ in range(60)]
        for task in sockets:
            await asyncio.sleep(0.0075)
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*sockets, return_exceptions=True), PATIENCE)
        proxy.set("pass")
        cancelled = sum(isinstance(each, asyncio.CancelledError) for each in ended)
        print(f"{cancelled} of {len(sockets)} were cancelled, {held(store)} are held")
        assert cancelled > 0
        refresher, direct = Refresher(store), Limiter([rule], RedisStore(redis_url, deadline=5.0))

        def settled() -> bool:
            refresher.resend()  # as the agent does twice a second
            return direct.peek("everyone").remaining == MANY["limit"]

        await until(settled)
        assert held(store) == 0
        for number in range(20):  # nor does anybody read an answer that was meant for another
            decision = await limiter.aacquire(f"other:{number % 4}")
            assert not decision.degraded
            assert decision.remaining == MANY["limit"] - 1 - number // 4
            assert decision.lease is not None
        assert not store.link.breaker.is_open


async def come_and_go() -> None:
    """A socket that is accepted and ends at once."""
    events = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(event: Any) -> None:
        pass

    await Grouped()({"type": "websocket", "path": "/"}, receive, send)
