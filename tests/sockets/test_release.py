"""The WebSocket doors when things go wrong: no slot is ever lost, and the store's failure is not the client's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from channels.exceptions import DenyConnection
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core.commands import Command, DecideLocally
from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores import RedisStore
from tests.consumers import (
    DENIAL,
    EVERY_KIND,
    TWO_FRAMES,
    TWO_SOCKETS,
    AsyncEcho,
    PlainEcho,
    count_in_redis,
    handshake,
    held,
    opened,
    socket,
)
from tests.doors import BOTH, REDIS, Enforce, enforcer
from tests.sockets.guarded import becomes

enforce = pytest.fixture(enforcer)


class TestRelease:
    """A slot comes back at once, however a socket ends; see also the tests on real servers."""

    @EVERY_KIND
    async def test_two_disconnects_release_once(self, enforce: Enforce, app: Any) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        first, second = await opened(app), await opened(app)
        for _ in range(2):
            await first.send_input({"type": "websocket.disconnect", "code": 1000})
        await first.wait()
        assert held(store) == 1
        await second.disconnect()
        assert held(store) == 0

    @pytest.mark.parametrize("base", [AsyncWebsocketConsumer, WebsocketConsumer])
    async def test_an_exception_in_a_consumer(self, enforce: Enforce, base: type) -> None:
        class AsyncBroken:
            async def receive(self, **_: Any) -> None:
                raise ZeroDivisionError

        class SyncBroken:
            def receive(self, **_: Any) -> None:
                raise ZeroDivisionError

        broken = AsyncBroken if base is AsyncWebsocketConsumer else SyncBroken
        store = enforce(sockets=TWO_SOCKETS)
        communicator = await opened(type("Broken", (ThrottledConsumerMixin, broken, base), {}).as_asgi())
        assert held(store) == 1
        await communicator.send_to("x")
        with pytest.raises(ZeroDivisionError):
            await communicator.wait()
        assert held(store) == 0

    async def test_a_consumer_that_denies_the_handshake_itself(self, enforce: Enforce) -> None:
        class Denying(AsyncEcho):
            async def connect(self) -> None:
                raise DenyConnection

        store = enforce(sockets=TWO_SOCKETS)
        communicator = socket(Denying.as_asgi())
        assert await communicator.connect() == (False, 1000)
        await communicator.disconnect()
        assert held(store) == 0

    @BOTH
    async def test_a_cancelled_application(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        communicator = await opened()
        assert held(store) == 1
        communicator.future.cancel()
        await asyncio.wait({communicator.future})
        assert held(store) == 0

    @REDIS
    async def test_nobody_waits_for_it(self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
        store, go_on = enforce(sockets=TWO_SOCKETS), asyncio.Event()
        assert isinstance(store, RedisStore)
        send = store.transport.asend_all

        async def hang(*args: Any) -> Any:
            await go_on.wait()
            return await send(*args)

        communicator = await opened()
        monkeypatch.setattr(store.transport, "post", lambda *args: False)
        monkeypatch.setattr(store.transport, "asend_all", hang)
        await communicator.disconnect()
        assert (held(store), len(store.leases.unconfirmed()), await count_in_redis(store)) == (0, 1, 1)
        go_on.set()
        await becomes(lambda: not store.leases.unconfirmed())
        assert await count_in_redis(store) == 0

    @REDIS
    async def test_a_handshake_cancelled_at_any_moment_leaves_no_slot(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 1000})
        await (await opened()).disconnect()  # connected and scripts loaded
        for step in range(40):
            communicator = socket()
            await communicator.send_input({"type": "websocket.connect"})
            for _ in range(step % 20):
                await asyncio.sleep(0)
            if step >= 20:
                await asyncio.sleep((step - 20) * 0.0001)
            communicator.future.cancel()
            _, still_running = await asyncio.wait({communicator.future}, timeout=20)
            assert not still_running, f"the cancellation was swallowed at step {step}"
        assert held(store) == 0
        assert isinstance(store, RedisStore)
        await asyncio.to_thread(Reconciler(store).resend)  # as the agent does within half a second
        assert await count_in_redis(store) == 0

    @REDIS
    async def test_fifty_at_once_at_a_cap_of_five(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 5})
        communicators = [socket() for _ in range(50)]
        answers = await asyncio.gather(*(communicator.connect() for communicator in communicators))
        accepted = [each for each, (is_open, _) in zip(communicators, answers, strict=True) if is_open]
        assert len(accepted) == held(store) == 5
        for communicator in accepted:
            await communicator.disconnect()
        await becomes(lambda: not store.leases.unconfirmed())
        assert await count_in_redis(store) == 0


class TestStoreFailure:
    @pytest.fixture
    def broken(self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        def enforce_on_broken_store(**rules: dict[str, Any]) -> None:
            store = enforce(**rules)

            async def fail(command: Command) -> Any:
                if isinstance(command, DecideLocally):
                    return store.execute(command)
                raise StoreError(Cause.UNAVAILABLE, retry_after=2.5)

            monkeypatch.setattr(store, "aexecute", fail)

        return enforce_on_broken_store

    async def test_deny_refuses_a_handshake_with_503(self, broken: Callable[..., None]) -> None:
        broken(knocks={"rate": "5/min", "events": ["connect"], "key": "everyone", "on_store_failure": "deny"})
        start, body = await handshake(extensions=DENIAL)
        assert start["status"] == 503
        assert dict(start["headers"])[b"retry-after"] == b"3"
        assert json.loads(body["body"])["type"].endswith("#temporary-reduced-capacity")
        assert await handshake() == [
            {"type": "websocket.close", "code": 4503, "reason": "limiter unavailable; retry_after=3"}
        ]

    async def test_deny_tells_a_browser_so_in_a_frame(self, broken: Callable[..., None]) -> None:
        broken(knocks={"rate": "5/min", "events": ["connect"], "key": "everyone", "on_store_failure": "deny"})
        app = ThrottleMiddleware(PlainEcho.as_asgi(), "chat", refuse="frame")
        accept, frame, close = await handshake(app, extensions=DENIAL)
        assert accept["type"] == "websocket.accept"
        assert (json.loads(frame["text"])["code"], close["code"]) == ("limiter_unavailable", 4503)

    async def test_deny_refuses_frames_but_never_closes(self, broken: Callable[..., None]) -> None:
        broken(frames={**TWO_FRAMES, "on_store_failure": "deny"})
        communicator = await opened()
        for _ in range(30):
            await communicator.send_to("x")
        assert (await communicator.receive_json_from())["code"] == "limiter_unavailable"
        assert await communicator.receive_nothing()
        await communicator.disconnect()

    async def test_allow_lets_handshakes_and_frames_through(self, broken: Callable[..., None]) -> None:
        broken(
            sockets={**TWO_SOCKETS, "limit": 1, "on_store_failure": "allow"},
            frames={**TWO_FRAMES, "rate": "1/min", "on_store_failure": "allow"},
        )
        communicators = [await opened() for _ in range(3)]
        for communicator in communicators:
            await communicator.send_to("x")
            assert await communicator.receive_from() == "x"
            await communicator.disconnect()


class TestGoneClients:
    """Servers raise from ``send`` when the client has gone; the application must still end in order."""

    async def test_an_error_frame_to_a_gone_client(self, enforce: Enforce) -> None:
        told: list[int] = []

        class Noting(AsyncEcho):
            async def disconnect(self, code: int) -> None:
                told.append(code)

        store = enforce(sockets=TWO_SOCKETS, frames={**TWO_FRAMES, "cost": 2})
        frames = [{"type": "websocket.connect"}, *[{"type": "websocket.receive", "text": "x"}] * 3]
        frames.append({"type": "websocket.disconnect", "code": 1006})

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            return frames.pop(0)

        async def send(event: dict[str, Any]) -> None:
            if "error" in event.get("text", ""):
                raise OSError("client disconnected")

        await Noting()({"type": "websocket", "path": "/"}, receive, send)
        assert told == [1006]
        assert held(store) == 0

    async def test_a_refusal_to_a_gone_client(self, enforce: Enforce) -> None:
        """It is said, nobody hears it, and that is all: no error, nothing started, nothing held."""
        sent: list[str] = []
        started: list[str] = []

        class Noting(AsyncEcho):
            async def connect(self) -> None:
                started.append("connect")
                await super().connect()

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(event: dict[str, Any]) -> None:
            sent.append(event["type"])
            raise OSError("client disconnected")

        knocks = {"rate": "5/min", "cost": 5, "events": ["connect"], "key": "everyone"}
        store = enforce(knocks=knocks, sockets=TWO_SOCKETS)
        await (await opened()).disconnect()
        assert await Noting()({"type": "websocket", "path": "/"}, receive, send) is None
        assert (sent[0], started, held(store)) == ("websocket.close", [], 0)
