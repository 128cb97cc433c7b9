"""Each frame at the WebSocket doors, in and out: what passes, what is dropped, what a client is told."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from channels.layers import get_channel_layer
from django.contrib.auth.models import User
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Decision
from django_throttle.drf import RuleThrottle
from django_throttle.observe.reports import ident_for_logs
from django_throttle.sockets import messages
from django_throttle.sockets.connection import Connection
from django_throttle.sockets.error_frames import DroppedFrames, Event, continuity_payload
from django_throttle.sockets.messages import UnsentFrames
from django_throttle.sockets.settings import SocketSettings
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
from tests.servers import slack
from tests.sockets.guarded import Line

enforce = pytest.fixture(enforcer)


def connected() -> tuple[Connection, list[Event]]:
    """An accepted connection without an application, and what its client is sent."""
    sent: list[Event] = []

    async def send(event: Event) -> None:
        sent.append(event)

    connection = Connection({"type": "websocket"}, asyncio.Queue().get, send, SocketSettings("chat"))
    connection.accepted()
    return connection, sent


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
            "reference": ident_for_logs("everyone"),
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


OUT = {"rate": "3/min", "events": ["send"], "key": "connection", "algorithm": "gcra"}


async def say(line: Line, *texts: str) -> None:
    for text in texts:
        await line.say({"type": "websocket.send", "text": text})


def test_the_frame_that_tells_of_a_gap() -> None:
    since = datetime(2026, 11, 20, 12, 34, 56, 789_999, UTC)
    assert continuity_payload(DroppedFrames(7, since)) == {
        "type": "continuity_lost",
        "lost": 7,
        "since": "2026-11-20T12:34:56.789Z",
        "detail": "7 messages were not sent to you, as there were too many.",
    }
    assert "1 message was" in continuity_payload(DroppedFrames(1, since))["detail"]


class TestLoss:
    async def test_fifty_a_second_each_way(self, enforce: Enforce) -> None:
        """Design C: by two rules, so that neither way uses up the other's."""
        options = {"rate": "50/s", "key": "connection", "algorithm": "gcra"}
        enforce(inward={**options, "events": ["message"]}, outward={**options, "events": ["send"]})
        line = await Line(ladder={"close": 0}).open()
        line.send(*[f"{n}" for n in range(60)])
        await line.until(lambda: line.told("error"))
        assert 50 <= len(line.got) < 60
        assert line.told("continuity_lost") == [], "what came in was echoed: fifty went out too"
        await say(line, *["more"] * 60)
        await line.until(lambda: line.told("continuity_lost"))
        await line.close()

    async def test_a_gap_is_told_once_with_how_many_and_since_when(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "3/300ms"})
        line = await Line().open()
        before = datetime.now(UTC)
        await say(line, *"abcdefgh")
        after = datetime.now(UTC)
        await line.until(lambda: line.told("continuity_lost"))
        (told,) = line.told("continuity_lost")
        assert (told["lost"], line.frames[:3]) == (5, ["a", "b", "c"])
        assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(told["since"]) <= after
        await asyncio.sleep(0.3)
        await say(line, "i")
        assert line.frames[-1] == "i"
        assert len(line.told("continuity_lost")) == 1
        (socket,) = open_sockets.everyone()
        assert (socket.sent, socket.lost) == (4, 5)
        await line.close()

    async def test_it_is_told_before_the_next_frame_that_passes(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "1/100ms"})
        line = await Line().open()
        await say(line, "a", "lost")
        await asyncio.sleep(0.11)
        await say(line, "b")
        kinds = [frame if isinstance(frame, str) else frame["type"] for frame in line.frames]
        assert kinds == ["a", "continuity_lost", "b"]
        await line.close()

    async def test_a_long_flood_is_told_of_once_a_second(self, enforce: Enforce, monkeypatch: Any) -> None:
        monkeypatch.setattr(messages, "REPORT_EVERY", 0.2)
        enforce(outward={**OUT, "rate": "10/100ms"})
        line = await Line().open()
        began, said = time.monotonic(), 0
        while (seconds := time.monotonic() - began) < 0.9:
            await say(line, "x")
            said += 1
            await asyncio.sleep(0.001)
        gaps = line.told("continuity_lost")
        print(f"{said} frames in {seconds:.2f} s, {len(gaps)} gaps told")
        assert 2 <= len(gaps) <= 1 + seconds / 0.2
        await asyncio.sleep(0.25)
        passed = line.frames.count("x")
        assert passed + sum(gap["lost"] for gap in line.told("continuity_lost")) == said
        await line.close()

    async def test_our_own_frames_never_count(self, enforce: Enforce) -> None:
        enforce(
            outward={**OUT, "rate": "2/min"},
            inward={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"},
        )
        line = await Line().open()
        line.send("one", "over")
        await line.until(lambda: line.told("error"))
        await say(line, "two")
        assert [frame for frame in line.frames if isinstance(frame, str)] == ["one", "two"]
        await line.close()

    async def test_it_is_what_the_consumer_says(self, enforce: Enforce) -> None:
        class Feed(AsyncEcho):
            groups = ["lobby"]

            async def news(self, event: dict[str, Any]) -> None:
                await self.send(event["text"])

            def throttle_continuity_payload(self, gap: DroppedFrames) -> object:
                return f"{gap.lost} missing"

        enforce(outward={**OUT, "rate": "2/200ms"})
        communicator = await opened(Feed.as_asgi())
        for n in range(5):
            await get_channel_layer().group_send("lobby", {"type": "news", "text": f"{n}"})
        assert [await communicator.receive_from() for _ in range(3)] == ["0", "1", "3 missing"]
        await communicator.disconnect()

    async def test_who_sends_too_much_and_closes_tells_of_the_gap_first(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/hour"})
        line = await Line(coalesce=lambda event: event["text"] if event["text"] in "xy" else None).open()
        await say(line, *"abcdexyx")
        await line.say({"type": "websocket.close", "code": 1000})
        assert [frame if isinstance(frame, str) else frame["lost"] for frame in line.frames] == ["a", "b", 6]
        assert [event["type"] for event in line.sent[-2:]] == ["websocket.send", "websocket.close"]
        assert open_sockets.everyone() == ()
        await line.close()

    async def test_it_does_so_a_moment_after_it_was_told_of_another(self) -> None:
        connection, told = connected()
        out = UnsentFrames(connection)
        for _ in range(2):
            out.refused({"type": "websocket.send", "text": "lost"}, None, 60.0)
            await out.report()
        gap = out.end()
        assert ([json.loads(event["text"])["lost"] for event in told], gap and gap.lost) == ([1], 1)
        assert out.end() is None, "there is nothing more to tell"

    async def test_so_does_who_is_closed_by_us(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "1/hour"})
        line = await Line().open()
        await say(line, "a", "lost", "lost")
        open_sockets.everyone()[0].close(4410, "closed", {"type": "error"})
        await line.until(lambda: line.closed)
        assert [frame if isinstance(frame, str) else frame["type"] for frame in line.frames] == [
            "a", "continuity_lost", "error",
        ]  # fmt: skip
        await line.close()

    async def test_shared_rules_hold_on_the_way_out_too(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/min", "key": "ip"})
        first, second = await Line().open(), await Line().open()
        await say(first, "a")
        await say(second, "b", "c")
        assert (first.frames, second.frames) == (["a"], ["b"])
        for line in (first, second):
            await line.close()

    async def test_a_queue_holds_the_application_up(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "20/s", "algorithm": "leaky_bucket", "action": "delay"})
        line = await Line().open()
        began = time.monotonic()
        await say(line, *"abcdef")
        seconds = time.monotonic() - began
        print(f"6 frames at 20/s took {seconds:.2f} s")
        assert 0.2 <= seconds <= 0.25 + slack(1.0)
        assert line.frames == [*"abcdef"]
        await line.close()

    async def test_bytes(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "10/min", "unit": "bytes"})
        line = await Line().open()
        await say(line, "abcde", "lost it", "fghij")
        assert [frame for frame in line.frames if isinstance(frame, str)] == ["abcde", "fghij"]
        await line.close()


class TestCoalescing:
    @staticmethod
    def kind(event: dict[str, Any]) -> str | None:
        return event["text"][0] if event["text"][0] in "xy" else None

    async def test_the_newest_of_a_kind_is_sent_when_there_is_room(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/200ms"})
        line = await Line(coalesce=self.kind).open()
        await say(line, "a", "b", "x1", "y1", "x2", "c", "x3")
        await line.until(lambda: "x3" in line.frames and "y1" in line.frames)
        sent = [frame for frame in line.frames if isinstance(frame, str)]
        assert sorted(sent) == ["a", "b", "x3", "y1"]
        assert sum(told["lost"] for told in line.told("continuity_lost")) == 3, "x1 and x2 overtaken, c left out"
        await line.close()

    async def test_what_was_kept_keeps_the_pace_too(self, enforce: Enforce) -> None:
        """A frame of each of twenty kinds waits: they go one by one, each when there is room for it."""
        enforce(outward={**OUT, "rate": "1/100ms"})
        line = await Line(coalesce=lambda event: event["text"]).open()
        began = time.monotonic()
        await say(line, *[f"{n}" for n in range(20)])
        await line.until(lambda: len(line.frames) >= 4)
        seconds = time.monotonic() - began
        print(f"{len(line.frames)} frames at 10/s in {seconds:.2f} s")
        assert len(line.frames) <= 1 + seconds / 0.1
        assert len(set(line.frames)) == len(line.frames)
        await line.close()

    async def test_what_passes_overtakes_what_was_kept(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "1/150ms"})
        line = await Line(coalesce=self.kind).open()
        await say(line, "a", "x1")
        time.sleep(0.16)  # noqa: ASYNC251 - the loop stands still, so that nothing is sent in between
        await say(line, "x2")
        assert "x1" not in line.frames
        assert [frame for frame in line.frames if isinstance(frame, str)] == ["a", "x2"]
        await asyncio.sleep(0.2)
        assert "x1" not in line.frames
        await line.close()

    async def test_kinds_are_bounded(self, enforce: Enforce, monkeypatch: Any) -> None:
        monkeypatch.setattr(messages, "MAX_KINDS", 3)
        connection, _ = connected()
        out = UnsentFrames(connection)
        for n in range(5):
            out.refused({"type": "websocket.send", "text": f"{n}"}, n, 60.0)
        assert (out.lost, connection.lost) == (2, 2)
        out.end()

    async def test_nothing_is_kept_for_a_client_that_has_gone(self, enforce: Enforce) -> None:
        """An application may go on for a while: what it sends too much of must not be sent later, by nobody."""
        enforce(outward={**OUT, "rate": "1/50ms"})
        go_on = asyncio.Event()

        class Lasting(Line):
            async def echo(self, scope: Any, receive: Any, send: Any) -> None:
                await super().echo(scope, receive, send)
                await say(self, "a", "x1", "lost")
                await go_on.wait()

        line = await Lasting(coalesce=self.kind).open()
        closing = asyncio.ensure_future(line.close())
        await line.until(lambda: "a" in line.frames)
        await asyncio.sleep(0.15)
        assert line.frames == ["a"]
        go_on.set()
        await closing

    async def test_a_server_s_error_for_it_is_nobody_s(self, enforce: Enforce, caplog: Any) -> None:
        """No application waits for what was kept, so none is told that its client has gone."""
        enforce(outward={**OUT, "rate": "1/50ms"})
        caplog.set_level("DEBUG", "django_throttle")
        failed: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))

        class Going(Line):
            async def take(self, event: Any) -> None:
                if event.get("text") == "x2":
                    raise OSError("it has gone")
                await super().take(event)

        line = await Going(coalesce=self.kind).open()
        await say(line, "a", "x1", "x2")
        await line.until(lambda: "it has gone" in caplog.text)
        gc.collect()
        assert failed == []
        await line.close()

    async def test_nothing_is_sent_after_the_end(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "1/50ms"})
        line = await Line(coalesce=self.kind).open()
        await say(line, "a", "x1", "lost")
        await line.close()
        before = list(line.sent)
        await asyncio.sleep(0.12)
        assert line.sent == before
