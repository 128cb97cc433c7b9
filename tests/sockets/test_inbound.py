"""The WebSocket doors at each frame: what passes, what is dropped, what a client is told, when it is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.layers import get_channel_layer
from django.contrib.auth.models import User
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_throttle.channels import ThrottleMiddleware
from django_throttle.core import Decision
from django_throttle.drf import RuleThrottle
from django_throttle.stores import get_store
from tests.clock import FrozenClock
from tests.consumers import (
    EVERY_KIND,
    TWO_FRAMES,
    TWO_SOCKETS,
    AsyncEcho,
    AsyncJsonEcho,
    held,
    opened,
    socket,
)
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)


class TestMessages:
    @BOTH
    async def test_a_refused_frame_is_dropped_and_told_once(self, enforce: Enforce, clock: FrozenClock) -> None:
        enforce(frames=TWO_FRAMES)
        clock.to(17.25)
        communicator = await opened()
        for text in ("one", "two"):
            await communicator.send_to(text)
            assert await communicator.receive_from() == text
        await communicator.send_to("three")
        assert await communicator.receive_json_from() == {
            "type": "error",
            "code": "rate_limited",
            "detail": "Rate limit exceeded. Try again in 43 seconds.",
            "rule": "frames",
            "limit": 2,
            "remaining": 0,
            "window": 60,
            "retry_after": 42.75,
        }
        await communicator.send_to("four")
        assert await communicator.receive_nothing()
        clock.to(60)
        await communicator.send_to("five")
        assert await communicator.receive_from() == "five"
        await communicator.disconnect()

    async def test_a_new_streak_of_refusals_is_told_again(self, enforce: Enforce, clock: FrozenClock) -> None:
        enforce(frames={**TWO_FRAMES, "rate": "1/min"})
        communicator = await opened()
        for minute in range(3):
            clock.to(60 * minute)
            await communicator.send_to("in")
            assert await communicator.receive_from() == "in"
            for _ in range(3):
                await communicator.send_to("over")
            assert (await communicator.receive_json_from())["retry_after"] == 60
            assert await communicator.receive_nothing(0.03)
        await communicator.disconnect()

    async def test_a_long_streak_is_told_once_a_retry_window(self, enforce: Enforce, settings: Any) -> None:
        enforce(frames={**TWO_FRAMES, "rate": "1/100ms"})
        communicator = await opened()
        await communicator.send_to("in")
        assert await communicator.receive_from() == "in"
        started = asyncio.get_running_loop().time()
        for expected in (0.0, 0.1):  # the store's clock stands still, the loop's doesn't
            for _ in range(3):
                await communicator.send_to("over")
            assert (await communicator.receive_json_from())["retry_after"] == 0.1
            assert asyncio.get_running_loop().time() - started >= expected
            await asyncio.sleep(0.11)
        await communicator.disconnect()

    async def test_it_is_refused_before_anyone_decodes_it(self, enforce: Enforce) -> None:
        class Decoding(AsyncJsonEcho):
            @classmethod
            async def decode_json(cls, text_data: str) -> Any:
                raise AssertionError("it was decoded")

        enforce(frames={**TWO_FRAMES, "cost": 2})
        first = await opened()
        await first.send_to("x")
        await first.receive_from()
        second = await opened(Decoding.as_asgi())
        await second.send_to("[" * 1000)
        assert (await second.receive_json_from())["code"] == "rate_limited"
        for communicator in (first, second):
            await communicator.disconnect()

    @EVERY_KIND
    async def test_closes_with_4429_after_too_many_in_a_row(self, enforce: Enforce, app: Any) -> None:
        store = enforce(sockets=TWO_SOCKETS, frames={**TWO_FRAMES, "rate": "1/min"})
        communicator = await opened(app)
        await communicator.send_json_to({})
        await communicator.receive_from()
        for _ in range(12):
            await communicator.send_json_to({})
        assert (await communicator.receive_json_from())["code"] == "rate_limited"
        close = await communicator.receive_output()
        assert close == {"type": "websocket.close", "code": 4429, "reason": "rate limited; retry_after=60"}
        await communicator.wait()
        assert await communicator.receive_nothing()
        assert held(store) == 0

    async def test_an_allowed_frame_ends_the_streak(self, enforce: Enforce, clock: FrozenClock) -> None:
        enforce(frames={**TWO_FRAMES, "rate": "1/s"})
        communicator = await opened()
        for second in range(3):
            clock.to(second)
            await communicator.send_to("in")
            assert await communicator.receive_from() == "in"
            for _ in range(9):
                await communicator.send_to("over")
            assert (await communicator.receive_json_from())["type"] == "error"
            assert await communicator.receive_nothing(0.03)
        await communicator.disconnect()

    async def test_the_application_is_told_and_its_last_words_are_swallowed(self, enforce: Enforce) -> None:
        told: list[int] = []

        class Talkative(AsyncEcho):
            async def disconnect(self, code: int) -> None:
                told.append(code)
                await self.send("goodbye")
                await self.close(4000)

        enforce(frames={**TWO_FRAMES, "rate": "1/min"})
        communicator = await opened(Talkative.as_asgi())
        await communicator.send_to("in")
        assert await communicator.receive_from() == "in"
        for _ in range(10):
            await communicator.send_to("over")
        kinds = [(await communicator.receive_output())["type"] for _ in range(2)]
        assert kinds == ["websocket.send", "websocket.close"]
        await communicator.wait()
        assert await communicator.receive_nothing()
        assert told == [4429]

    async def test_what_follows_our_close_reaches_no_one(self, enforce: Enforce) -> None:
        seen: list[str] = []

        async def stubborn(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            while len(seen) < 2:
                event = await receive()
                if event["type"] == "websocket.disconnect":
                    seen.append(event["code"])
                    await send({"type": "websocket.close"})

        enforce(frames={**TWO_FRAMES, "cost": 2})
        communicator = await opened(ThrottleMiddleware(stubborn, scope="chat"))
        for _ in range(14):
            await communicator.send_to("x")
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait()
        assert seen == [4429, 1000]
        kinds = [(await communicator.receive_output())["type"] for _ in range(2)]
        assert kinds == ["websocket.send", "websocket.close"]
        assert await communicator.receive_nothing()

    async def test_before_accept_nothing_is_said(self, enforce: Enforce) -> None:
        async def hesitant(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            assert (await receive())["text"] == "in"
            assert (await receive())["type"] == "websocket.disconnect"

        enforce(frames={**TWO_FRAMES, "cost": 2})
        communicator = socket(ThrottleMiddleware(hesitant, scope="chat"))
        await communicator.send_input({"type": "websocket.connect"})
        for text in ("in", *["over"] * 20):
            await communicator.send_to(text)
        await communicator.disconnect()
        assert await communicator.receive_nothing()

    async def test_zero_violations_never_close(self, enforce: Enforce, settings: Any) -> None:
        store = enforce(frames={**TWO_FRAMES, "rate": "1/min"})
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "MAX_VIOLATIONS": 0}
        get_store()  # the settings' own store from here on
        communicator = await opened()
        for _ in range(50):
            await communicator.send_to("x")
        assert await communicator.receive_from() == "x"
        assert (await communicator.receive_json_from())["type"] == "error"
        assert await communicator.receive_nothing()
        await communicator.disconnect()
        assert held(store) == 0

    async def test_a_frame_costs_what_the_consumer_says(self, enforce: Enforce) -> None:
        class Weighed(AsyncEcho):
            def throttle_cost(self, message: dict[str, Any]) -> int:
                return len(message["text"])

        enforce(frames={**TWO_FRAMES, "rate": "10/min"})
        communicator = await opened(Weighed.as_asgi())
        await communicator.send_to("12345678")
        assert await communicator.receive_from() == "12345678"
        await communicator.send_to("123")
        assert (await communicator.receive_json_from())["remaining"] == 2
        await communicator.send_to("12")
        assert await communicator.receive_from() == "12"
        await communicator.send_to("too much for any minute")
        assert (await communicator.receive_json_from())["retry_after"] is None
        await communicator.disconnect()

    @pytest.mark.parametrize(
        ("payload", "event"),
        [
            ({"wait": 1}, {"type": "websocket.send", "text": '{"wait": 1}'}),
            ("slow down", {"type": "websocket.send", "text": "slow down"}),
            (b"\x00", {"type": "websocket.send", "bytes": b"\x00"}),
        ],
    )
    async def test_the_error_frame_is_what_the_consumer_says(
        self, enforce: Enforce, payload: object, event: object
    ) -> None:
        class Custom(AsyncEcho):
            def throttle_error_payload(self, decision: Decision) -> object:
                assert decision.rule == "frames"
                return payload

        enforce(frames={**TWO_FRAMES, "cost": 2})
        communicator = await opened(Custom.as_asgi())
        await communicator.send_to("x")
        await communicator.receive_from()
        await communicator.send_to("x")
        assert await communicator.receive_output() == event
        await communicator.disconnect()

    @BOTH
    async def test_requests_and_frames_draw_on_one_budget(self, enforce: Enforce) -> None:
        class Search(APIView):
            authentication_classes = ()
            throttle_classes = [RuleThrottle]
            throttle_scope = "search"

            def get(self, request: Request) -> Response:
                return Response()

        def search() -> int:
            request = APIRequestFactory().get("/search")
            force_authenticate(request, User(pk=5))
            return int(Search.as_view()(request).status_code)

        enforce(api={"rate": "4/min", "scopes": ["search", "chat"], "events": ["request", "message"], "key": "user"})
        communicator = await opened(user=User(pk=5))
        for text in ("one", "two", "three"):
            await communicator.send_to(text)
            assert await communicator.receive_from() == text
        assert [await asyncio.to_thread(search) for _ in range(2)] == [200, 429]
        await communicator.send_to("five")
        told = await communicator.receive_json_from()
        assert (told["rule"], told["limit"], told["remaining"]) == ("api", 4, 0)
        await communicator.disconnect()

    @EVERY_KIND
    async def test_the_channel_layer_is_left_alone(self, enforce: Enforce, app: Any) -> None:
        class Listener(AsyncEcho):
            groups = ["lobby"]

            async def news(self, event: dict[str, Any]) -> None:
                await self.send(event["text"])

        enforce(frames={**TWO_FRAMES, "rate": "1/min"})
        communicator = await opened(Listener.as_asgi())
        await communicator.send_to("in")
        await communicator.receive_from()
        await communicator.send_to("over")
        assert (await communicator.receive_json_from())["type"] == "error"
        for n in range(5):
            await get_channel_layer().group_send("lobby", {"type": "news", "text": f"item {n}"})
        assert [await communicator.receive_from() for _ in range(5)] == [f"item {n}" for n in range(5)]
        await communicator.disconnect()
        assert not get_channel_layer().groups.get("lobby")
