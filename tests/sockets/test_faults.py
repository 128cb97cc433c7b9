"""Whatever fails around a socket, its slot comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from channels.layers import InMemoryChannelLayer

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.consumers import TWO_SOCKETS, count_in_redis, held, opened
from tests.doors import Enforce, enforcer
from tests.forks import holds_in_child
from tests.inside import count_in
from tests.proxy import Proxy
from tests.servers import RedisServer, slack
from tests.sockets.visitor import PATIENCE, until

enforce = pytest.fixture(enforcer)
LIMIT = 1000
MANY = {**TWO_SOCKETS, "limit": LIMIT}


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
    """No consumer at all; it lasts until its client says something, or goes."""
    await receive()
    await send({"type": "websocket.accept"})
    await receive()


async def breaking(scope: Any, receive: Any, send: Any) -> None:
    await bare(scope, receive, send)
    raise Broken


# Channels has threads of its own, which a fork would lose.
PLAIN = ThrottleMiddleware(bare, scope="chat")


FAILING = {
    "a layer": Grouped.as_asgi(),
    "a layer, sync": SyncGrouped.as_asgi(),
    "disconnect": Leaving.as_asgi(),
    "disconnect, sync": SyncLeaving.as_asgi(),
    "websocket_disconnect": Overriding.as_asgi(),
    "an application": ThrottleMiddleware(breaking, scope="chat"),
}


@pytest.mark.row("F47")
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


@pytest.mark.row("F48")
@pytest.mark.parametrize("step", [0.005, 0.03], ids=["handshakes", "whole lives"])
async def test_f48_cancelled_at_any_moment(
    enforce: Enforce,
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    step: float,
    figure: Callable[..., None],
) -> None:
    """Sixty sockets, whose answers from Redis take 0.2 s, ended one after the other as they come and go."""
    enforce(sockets=MANY)
    rule = Rule.from_options("sockets", MANY)
    with Proxy(redis_server.port) as proxy:
        store: Any = RedisStore(proxy.url, deadline=5.0)
        count_in(store, monkeypatch)
        limiter = Limiter([rule], store)
        await limiter.apeek("everyone")  # connected, and knows its scripts
        proxy.set("delay", 0.2)
        sockets = [asyncio.create_task(come_and_go()) for _ in range(60)]
        for task in sockets:
            await asyncio.sleep(step)
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*sockets, return_exceptions=True), PATIENCE)
        proxy.set("pass")
        cancelled = sum(isinstance(each, asyncio.CancelledError) for each in ended)
        figure(f"cancelled of {len(sockets)}", cancelled)
        assert cancelled > 0
        near: Any = RedisStore(redis_url, deadline=5.0)
        reconciler, direct = Reconciler(store), Limiter([rule], near)

        def settled() -> bool:
            reconciler.resend()  # as the agent does twice a second
            return direct.peek("everyone").remaining == LIMIT

        assert await until(settled) <= slack(1)
        assert held(store) == 0
        for number in range(20):  # nor does anybody read an answer that was meant for another
            decision = await limiter.aacquire(f"other:{number % 4}")
            assert not decision.degraded
            assert decision.remaining == LIMIT - 1 - number // 4
            assert decision.lease is not None
        assert not store.transport.breaker.is_open
        for each in (store, near):
            each.transport.client.connection_pool.disconnect()


@pytest.fixture
def store(enforce: Enforce, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """In force, on a clock that runs, with time enough for a busy machine."""
    enforce(sockets=MANY)
    store: Any = RedisStore(redis_url, deadline=5.0)
    count_in(store, monkeypatch)
    yield store
    store.transport.client.connection_pool.disconnect()


async def one_more(others: int) -> bool:
    """A socket comes, is counted beside the others of its process and of all, and goes."""
    store = get_store()
    assert isinstance(store, RedisStore)
    before = held(store)
    communicator = await opened(PLAIN)
    assert (held(store), await count_in_redis(store)) == (before + 1, others + 1)
    await communicator.disconnect()
    await until(lambda: not store.leases.unconfirmed())
    return held(store) == before and await count_in_redis(store) == others


@pytest.mark.row("F49")
def test_f49_sockets_on_many_loops(store: Any) -> None:
    """A hundred loops one after the other, and four threads with one each: a client for each loop that lives."""
    for _ in range(100):
        assert asyncio.run(one_more(0))
    assert len(store.transport.loops) <= 1
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: asyncio.run(come_and_go()), range(100)))
    assert len(store.transport.loops) <= 4
    assert held(store) == 0
    assert asyncio.run(one_more(0))


@pytest.mark.row("F50")
def test_f50_a_server_that_forks_while_it_holds_a_socket(store: Any) -> None:
    """Each process counts its own; the child gives back nothing of its parent's, and uses its own connections."""
    with asyncio.Runner() as runner:
        communicator = runner.run(opened(PLAIN))
        mine = {connection["id"] for connection in store.transport.client.client_list()}

        def claim() -> bool:
            assert held(store) == 0, "what the parent holds is not the child's"
            assert asyncio.run(one_more(1))
            return not mine & {store.transport.client.client_id()}

        assert all(holds_in_child(claim) for _ in range(4))
        assert runner.run(one_more(1))
        runner.run(communicator.disconnect())
        assert runner.run(one_more(0))


async def come_and_go() -> None:
    """A socket that is accepted and ends at once."""
    events: list[dict[str, Any]] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(event: Any) -> None:
        pass

    await Grouped()({"type": "websocket", "path": "/"}, receive, send)
    await until(lambda: not get_store().leases.unconfirmed())
