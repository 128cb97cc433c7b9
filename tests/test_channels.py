"""The WebSocket doors at the handshake: who gets in, and how one is told that one does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from channels.testing import HttpCommunicator
from django.contrib.auth.models import User
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.core import Decision
from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets.close import by_http
from tests.clock import FrozenClock
from tests.consumers import (
    DENIAL,
    EVERY_KIND,
    KINDS,
    TWO_FRAMES,
    TWO_SOCKETS,
    AsyncEcho,
    PlainEcho,
    handshake,
    held,
    opened,
    socket,
)
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)


class TestHandshake:
    @BOTH
    async def test_the_cap_refuses_the_next_and_a_close_frees_a_slot(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        first, second = await opened(), await opened()
        assert await socket().connect() == (False, 4430)
        await first.disconnect()
        assert held(store) == 1
        third = await opened()
        assert await socket().connect() == (False, 4430)
        for communicator in (second, third):
            await communicator.disconnect()
        assert held(store) == 0

    @EVERY_KIND
    async def test_every_kind_of_consumer(self, enforce: Enforce, app: Any) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 1}, frames=TWO_FRAMES)
        communicator = await opened(app)
        assert await socket(app).connect() == (False, 4430)
        for n in range(2):
            await communicator.send_json_to({"n": n})
            assert await communicator.receive_json_from() == {"n": n}
        await communicator.send_json_to({"n": 2})
        assert (await communicator.receive_json_from())["code"] == "rate_limited"
        await communicator.disconnect()
        assert held(store) == 0

    async def test_a_refusal_is_an_http_response_where_the_server_takes_one(
        self, enforce: Enforce, clock: FrozenClock
    ) -> None:
        enforce(knocks={"rate": "1/min", "events": ["connect"], "key": "everyone", "algorithm": "fixed_window"})
        clock.to(12.5)
        communicator = await opened()
        start, body = await handshake(extensions=DENIAL)
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
        headers = dict(start["headers"])
        assert headers[b"retry-after"] == b"48"
        assert headers[b"content-type"] == b"application/problem+json"
        assert int(headers[b"content-length"]) == len(body["body"])
        assert (body["type"], body["more_body"]) == ("websocket.http.response.body", False)
        assert json.loads(body["body"]) == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Rate limit exceeded",
            "status": 429,
            "detail": "Rate limit exceeded. Try again in 48 seconds.",
            "violated-policies": ["knocks"],
        }
        await communicator.disconnect()

    async def test_what_never_passes_has_no_retry_after(self) -> None:
        sent: list[Any] = []

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        await by_http({"extensions": DENIAL}, send, Decision(allowed=False, retry_after=None), None)
        assert b"retry-after" not in dict(sent[0]["headers"])
        said = "Rate limit exceeded. This costs more than the limit ever allows."
        assert json.loads(sent[1]["body"])["detail"] == said
        await by_http({}, send, Decision(allowed=False, retry_after=None), None)
        assert sent[2]["reason"] == "rate limited"

    async def test_the_rate_and_the_number_are_one_decision(self, enforce: Enforce, clock: FrozenClock) -> None:
        store = enforce(
            sockets={**TWO_SOCKETS, "limit": 1},
            knocks={"rate": "2/min", "events": ["connect"], "key": "everyone", "algorithm": "fixed_window"},
        )
        communicator = await opened()
        for _ in range(5):
            assert (await socket().connect())[0] is False  # over the cap: charged to no rate
        await communicator.disconnect()
        await (await opened()).disconnect()
        assert (await socket().connect())[0] is False  # over the rate: holds no slot
        assert held(store) == 0

    async def test_a_refusal_in_a_frame_is_accepted_told_and_closed(self, enforce: Enforce) -> None:
        class Browser(AsyncEcho):
            refuse = "frame"

        enforce(sockets={**TWO_SOCKETS, "limit": 1})
        communicator = await opened(Browser.as_asgi())
        accept, frame, close = await handshake(Browser.as_asgi(), subprotocols=["v2", "v1"], extensions=DENIAL)
        assert accept == {"type": "websocket.accept", "subprotocol": "v2"}
        told = json.loads(frame["text"])
        assert (told["type"], told["code"], told["rule"]) == ("error", "connection_limit", "sockets")
        assert (told["limit"], told["remaining"], told["window"]) == (1, 0, None)
        assert (close["type"], close["code"]) == ("websocket.close", 4430)
        assert close["reason"].startswith("connection limit; retry_after=")
        await communicator.disconnect()

    @pytest.mark.parametrize("refuse", ["http", "frame"])
    async def test_too_many_handshakes_are_too_many_connections(self, enforce: Enforce, refuse: str) -> None:
        """4430 also for a rate of handshakes: what is to be done about it is another thing than about messages."""
        enforce(knocks={"rate": "1/min", "events": ["connect"], "key": "ip"})
        app = ThrottleMiddleware(PlainEcho.as_asgi(), "chat", refuse=refuse)
        await (await opened(app, client=["203.0.113.9", 1])).disconnect()
        *_, close = await handshake(app, client=["203.0.113.9", 2])
        assert (close["type"], close["code"]) == ("websocket.close", 4430)
        assert close["reason"].startswith("rate limited; retry_after=")
        await (await opened(app, client=["198.51.100.7", 1])).disconnect()

    async def test_what_a_consumer_says_holds_for_refused_handshakes_too(self, enforce: Enforce) -> None:
        class Own(AsyncEcho):
            refuse = "frame"
            throttle_close_codes = {"connection_limit": 4001}

            def throttle_error_payload(self, decision: Decision) -> object:
                return f"no room by {decision.rule}"

        enforce(sockets={**TWO_SOCKETS, "limit": 1})
        communicator = await opened(Own.as_asgi())
        _, frame, close = await handshake(Own.as_asgi())
        assert (frame["text"], close["code"]) == ("no room by sockets", 4001)
        Own.refuse = "http"
        (close,) = await handshake(Own.as_asgi())
        assert close["code"] == 4001
        await communicator.disconnect()

    async def test_the_setting_says_how_where_nobody_else_does(self, enforce: Enforce) -> None:
        enforce(sockets={**TWO_SOCKETS, "limit": 1}, REFUSE_SOCKET="frame")
        communicator = await opened()
        assert [event["type"] for event in await handshake()] == [
            "websocket.accept", "websocket.send", "websocket.close",
        ]  # fmt: skip
        await communicator.disconnect()

    async def test_the_setting_and_the_middleware_choose_how_to_refuse(self, enforce: Enforce, settings: Any) -> None:
        enforce(sockets={**TWO_SOCKETS, "limit": 1})
        communicator = await opened()
        by_frame = ThrottleMiddleware(PlainEcho.as_asgi(), scope="chat", refuse="frame")
        accept, *_ = await handshake(by_frame)
        assert accept["type"] == "websocket.accept"
        await communicator.disconnect()

    async def test_an_unknown_way_to_refuse_is_said_at_once(self, enforce: Enforce) -> None:
        enforce()
        with pytest.raises(InvalidSetting, match="one of http, frame, not 'shout'"):
            await handshake(ThrottleMiddleware(PlainEcho.as_asgi(), refuse="shout"))

    async def test_a_refused_consumer_is_never_started(self, enforce: Enforce) -> None:
        class Grouped(AsyncEcho):
            groups = ["unused"]  # by any other test of this process

            async def connect(self) -> None:
                raise AssertionError("it was started")

        enforce(knocks={"rate": "1/min", "events": ["connect"], "key": "everyone"})
        await (await opened()).disconnect()
        assert (await socket(Grouped.as_asgi()).connect())[0] is False
        assert "unused" not in get_channel_layer().groups

    async def test_the_scope_is_the_consumers_else_its_class_name(self, enforce: Enforce) -> None:
        class Ticker(ThrottledConsumerMixin, AsyncWebsocketConsumer):
            pass

        enforce(knocks={"rate": "1/min", "events": ["connect"], "key": "everyone", "scopes": ["Ticker"]})
        routed = URLRouter([path("chat", Ticker.as_asgi())])
        await (await opened(routed)).disconnect()
        assert (await socket(routed).connect())[0] is False
        await (await opened(KINDS["async"])).disconnect()

    async def test_it_stands_between_two_routers(self, enforce: Enforce) -> None:
        enforce(sockets={**TWO_SOCKETS, "limit": 1})
        inner = ThrottleMiddleware(URLRouter([path("chat", PlainEcho.as_asgi())]), "chat")
        app = URLRouter([path("", inner)])
        communicator = await opened(app)
        assert (await socket(app).connect())[0] is False
        await communicator.disconnect()

    async def test_users_and_addresses_hold_their_own(self, enforce: Enforce) -> None:
        enforce(sockets={**TWO_SOCKETS, "limit": 1, "key": "user_or_ip"})
        callers = [{"user": User(pk=1)}, {"user": User(pk=2)}, {"client": ["203.0.113.9", 1]}]
        communicators = [await opened(**caller) for caller in callers]
        for caller in callers:
            assert (await socket(**caller).connect())[0] is False
        for communicator in communicators:
            await communicator.disconnect()

    async def test_what_is_no_socket_passes_the_middleware_untouched(self, enforce: Enforce) -> None:
        async def http(scope: Any, receive: Any, send: Any) -> None:
            assert (await receive())["type"] == "http.request"
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        enforce(all={"rate": "1/min", "events": ["request", "connect", "message"], "key": "everyone"})
        app = ThrottleMiddleware(http, scope="chat")
        answers = [await HttpCommunicator(app, "GET", "/").get_response(timeout=20) for _ in range(3)]
        assert [answer["status"] for answer in answers] == [204] * 3

    def test_a_mixin_on_the_wrong_side_is_refused_at_import(self) -> None:
        with pytest.raises(TypeError, match="ThrottledConsumerMixin must stand left of AsyncConsumer"):
            type("Wrong", (AsyncWebsocketConsumer, ThrottledConsumerMixin), {})
