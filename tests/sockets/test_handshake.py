"""The handshake: one decision on its rate and on the sockets held open, and how a client is told of a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_throttle.channels import ThrottleMiddleware
from django_throttle.core import Decision
from django_throttle.observe.reports import ident_for_logs
from django_throttle.sockets.error_frames import Close, refuse_handshake
from tests.clock import FrozenClock
from tests.consumers import (
    DENIAL,
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
            "reference": ident_for_logs("everyone"),
        }
        await communicator.disconnect()

    async def test_what_never_passes_has_no_retry_after(self) -> None:
        sent: list[Any] = []

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        never, close = Decision(allowed=False, retry_after=None), Close(4430, "rate limited")
        await refuse_handshake({"extensions": DENIAL}, send, never, close, by="http")
        assert b"retry-after" not in dict(sent[0]["headers"])
        said = "Rate limit exceeded. This costs more than the limit ever allows."
        assert json.loads(sent[1]["body"])["detail"] == said
        await refuse_handshake({}, send, never, close, by="http")
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
        *told, close = await handshake(app, client=["203.0.113.9", 2])
        expected = {"http": [], "frame": ["websocket.accept", "websocket.send"]}
        assert [event["type"] for event in told] == expected[refuse]
        assert (close["type"], close["code"]) == ("websocket.close", 4430)
        assert close["reason"].startswith("rate limited; retry_after=")
        await (await opened(app, client=["198.51.100.7", 1])).disconnect()

    async def test_users_and_addresses_hold_their_own(self, enforce: Enforce) -> None:
        enforce(sockets={**TWO_SOCKETS, "limit": 1, "key": "user_or_ip"})
        callers = [{"user": User(pk=1)}, {"user": User(pk=2)}, {"client": ["203.0.113.9", 1]}]
        communicators = [await opened(**caller) for caller in callers]
        for caller in callers:
            assert (await socket(**caller).connect())[0] is False
        for communicator in communicators:
            await communicator.disconnect()
