"""The WebSocket doors at the handshake: who gets in, and how one is told that one does not."""

from __future__ import annotations

from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.testing import HttpCommunicator

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from tests.doors import Enforce


class TestHandshake:
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
