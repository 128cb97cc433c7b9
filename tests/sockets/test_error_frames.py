"""Frames that we or a site make, how sockets are closed, and what refusals in a row lead to."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import pytest
from django.utils.translation import gettext_lazy

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.sockets import connection, error_frames, messages
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.error_frames import encode
from tests.consumers import TWO_SOCKETS, AsyncEcho, held, opened
from tests.doors import Enforce, enforcer
from tests.servers import slack
from tests.sockets.guarded import Deaf, Line, only, texts


class TestWhatIsSent:
    def test_text_and_bytes_as_they_are_and_the_rest_as_json(self) -> None:
        assert (encode("as it is"), encode(b"\x00"), encode(gettext_lazy("later"))) == ("as it is", b"\x00", "later")
        number, moment = UUID(int=7), datetime(2026, 11, 20, 12, tzinfo=UTC)
        payload = {"text": gettext_lazy("later"), "id": number, "price": Decimal("1.50"), "at": moment}
        assert json.loads(encode(payload)) == {
            "text": "later", "id": str(number), "price": "1.50", "at": "2026-11-20T12:00:00Z",
        }  # fmt: skip


enforce = pytest.fixture(enforcer)


class TestClose:
    async def test_an_application_that_is_busy_hears_of_it_next(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        go_on, heard = asyncio.Event(), []

        async def busy(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await go_on.wait()
            await send({"type": "websocket.send", "text": "swallowed"})
            heard.append(await receive())

        line = await Line(ThrottleMiddleware(busy, "chat")).open()
        line.send("never seen")
        only().close(4000, "goodbye")
        await line.until(lambda: line.closed)
        assert held(store) == 0, "its slot does not wait for the application"
        go_on.set()
        assert line.task is not None
        await line.task
        assert [event["type"] for event in heard] == ["websocket.disconnect"]
        assert line.frames == []

    async def test_a_cancellation_from_outside_is_no_goodbye(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        line = await Line().open()
        assert line.task is not None
        only().close(4000, "goodbye")
        line.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await line.task
        assert held(store) == 0

    async def test_a_client_that_reads_nothing_keeps_nobody(self, enforce: Enforce, monkeypatch: Any) -> None:
        monkeypatch.setattr(error_frames, "SEND_TIMEOUT", 0.1)
        store = enforce(sockets=TWO_SOCKETS)
        line = await Deaf().open()
        only().close(4000, "goodbye", {"type": "error"})
        assert line.task is not None
        await asyncio.wait({line.task}, timeout=slack(2.0))
        assert line.task.done()
        assert held(store) == 0

    async def test_nor_does_it_keep_an_application_that_is_sending(self, enforce: Enforce, monkeypatch: Any) -> None:
        """What it sends is cut, wherever it does so, and it hears of the end in its next receive."""
        monkeypatch.setattr(error_frames, "SEND_TIMEOUT", 0.05)
        store = enforce(sockets=TWO_SOCKETS)
        heard: list[Any] = []

        async def ticker(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            beside = asyncio.ensure_future(send({"type": "websocket.send", "text": "beside"}))
            await send({"type": "websocket.send", "text": "tick"})
            await send({"type": "websocket.close"})
            heard.append(await receive())
            await beside

        line = Deaf(ThrottleMiddleware(ticker, "chat"))
        await line.open()
        only().close(4000, "goodbye")
        assert line.task is not None
        await asyncio.wait({line.task}, timeout=slack(5.0))
        assert heard == [{"type": "websocket.disconnect", "code": 4000, "reason": "goodbye"}]
        assert (line.task.exception(), held(store)) == (None, 0)
        assert [event["type"] for event in line.sent] == ["websocket.accept"]

    async def test_who_sends_and_never_listens_is_let_be_for_a_moment(self, enforce: Enforce, monkeypatch: Any) -> None:
        """Then it gets what a server gives to whoever sends to nobody, and ends."""
        monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.2)
        enforce()
        raised: list[Exception] = []

        async def ticker(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            try:
                while True:
                    await send({"type": "websocket.send", "text": "tick"})
                    await asyncio.sleep(0.01)
            except OSError as error:
                raised.append(error)
                raise

        line = await Line(ThrottleMiddleware(ticker, "chat")).open()
        only().close(4000, "goodbye")
        assert line.task is not None
        began = time.monotonic()
        await asyncio.wait({line.task}, timeout=slack(5.0))
        assert time.monotonic() - began >= 0.19
        assert (len(raised), line.task.exception()) == (1, None), "it is no fault of the application"
        assert line.sent[-1]["type"] == "websocket.close"

    async def test_what_a_server_says_of_a_frame_that_came_too_late_is_not_told(self, enforce: Enforce) -> None:
        enforce()
        going = asyncio.Event()

        class Strict(Line):
            async def take(self, event: Any) -> None:
                if event.get("text") == "late":
                    await going.wait()
                    raise RuntimeError("a frame after the close")
                await super().take(event)
                if event["type"] == "websocket.close":
                    going.set()
                    await asyncio.sleep(0.02)  # so that it fails before it is cut

        line = await Strict().open()
        line.send("late")
        await line.until(lambda: texts(line))
        only().close(4000, "goodbye")
        assert line.task is not None
        await asyncio.wait({line.task}, timeout=slack(5.0))
        assert line.task.exception() is None
        assert line.got[-1]["type"] == "websocket.disconnect"

    @pytest.mark.parametrize("error", [ConnectionAbortedError, RuntimeError])
    async def test_but_an_open_socket_s_errors_are_the_application_s(self, enforce: Enforce, error: Any) -> None:
        enforce()

        class Failing(Line):
            async def take(self, event: Any) -> None:
                if event.get("text") == "x":
                    raise error
                await super().take(event)

        line = await Failing().open()
        line.send("x")
        assert line.task is not None
        with pytest.raises(error):
            await line.task
        assert open_sockets.everyone() == ()

    async def test_what_crosses_the_application_s_own_close_reaches_no_one(self, enforce: Enforce) -> None:
        """A client chooses how long that takes, and nobody would be charged for it."""
        enforce(
            inward={"rate": "3/h", "events": ["message"], "key": "ip"},
            outward={"rate": "3/h", "events": ["send"], "key": "ip"},
        )
        taken, heard = asyncio.Event(), []

        class Slow(Line):
            async def take(self, event: Any) -> None:
                if event["type"] == "websocket.close":
                    await taken.wait()
                await super().take(event)

        async def closing(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            close = asyncio.ensure_future(send({"type": "websocket.close", "code": 4001}))
            await asyncio.sleep(0)
            for _ in range(10):
                await send({"type": "websocket.send", "text": "too late"})
            while (event := await receive())["type"] != "websocket.disconnect":
                heard.append(event)
            await close

        line = await Slow(ThrottleMiddleware(closing, "chat")).open()
        line.send(*"abcdefghij")
        ending = asyncio.ensure_future(line.close())
        await asyncio.sleep(0.05)
        taken.set()
        await ending
        assert (heard, [event["type"] for event in line.sent]) == ([], ["websocket.accept", "websocket.close"])

    async def test_nor_does_its_own_close_wait_for_ever(self, enforce: Enforce, monkeypatch: Any) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.1)
        raised: list[BaseException] = []

        class Deaf(Line):
            async def take(self, event: Any) -> None:
                if event["type"] == "websocket.close":
                    await asyncio.Event().wait()
                await super().take(event)

        async def closing(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            try:
                await send({"type": "websocket.close"})
            except OSError as error:
                raised.append(error)

        line = await Deaf(ThrottleMiddleware(closing, "chat")).open()
        assert line.task is not None
        await asyncio.wait_for(line.task, slack(10))
        assert len(raised) == 1
        assert held(store) == 0


OWN = {"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}


async def test_an_application_that_waits_no_longer_does_not_cut_the_close_short(enforce: Enforce) -> None:
    """Its wait is where we close, as the last refusal is met there."""
    enforce(inward={"rate": "1/h", "events": ["message"], "key": "connection"})
    told: list[int] = []

    class Slow(Line):
        async def take(self, event: Any) -> None:
            if event["type"] == "websocket.close":
                await asyncio.sleep(0.2)
            await super().take(event)

    async def impatient(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not told:
            with suppress(TimeoutError):
                event = await asyncio.wait_for(receive(), 0.05)
                told.extend([event["code"]] if event["type"] == "websocket.disconnect" else [])

    line = await Slow(ThrottleMiddleware(impatient, "chat", ladder={"close": 2})).open()
    line.send("1", "2", "3")
    await line.until(lambda: line.closed and told)
    assert (line.closed, told) == ({"type": "websocket.close", "code": 4429, "reason": ANY}, [4429])


class TestSockets:
    async def test_dropped_without_a_word(self, enforce: Enforce) -> None:
        enforce(own=OWN)
        line = await Line(ladder={"error": 0, "close": 0}).open()
        line.send("in", *["over"] * 40)
        line.send("last")
        await line.close()
        assert texts(line) == ["in"]
        assert line.frames == ["in"]
        assert line.closed is None

    async def test_held_up_until_it_may_pass(self, enforce: Enforce) -> None:
        enforce(own={**OWN, "rate": "1/200ms"})
        line = await Line(ladder={"error": 0, "delay": 1}).open()
        began = time.monotonic()
        line.send("one", "two", "three")
        await line.until(lambda: len(texts(line)) == 3)
        seconds = time.monotonic() - began
        print(f"3 frames at 1/200ms took {seconds:.2f} s")
        assert 0.39 <= seconds <= 0.4 + slack(1.0)
        await line.close()

    async def test_held_up_for_two_seconds_at_most_and_a_goodbye_is_heard_meanwhile(self, enforce: Enforce) -> None:
        enforce(own=OWN)
        line = await Line(ladder={"delay": 1}).open()
        line.send("in", "over")
        await line.until(lambda: line.told("error"))
        began = time.monotonic()
        (socket,) = open_sockets.everyone()
        socket.close(4000, "enough")
        await line.until(lambda: line.closed)
        assert line.task is not None
        await line.task
        assert time.monotonic() - began < slack(1.5)
        assert (line.closed, line.got[-1]) == (
            {"type": "websocket.close", "code": 4000, "reason": "enough"},
            {"type": "websocket.disconnect", "code": 4000, "reason": "enough"},
        )

    async def test_held_up_for_as_long_as_any_may_be(self, enforce: Enforce, monkeypatch: Any) -> None:
        """However long it would be until it may pass: a minute here."""
        assert MAX_DELAY == 2.0
        monkeypatch.setattr(messages, "MAX_DELAY", 0.1)
        enforce(own=OWN)
        line = await Line(ladder={"error": 0, "delay": 1, "close": 3}).open()
        began = time.monotonic()
        line.send("in", *["over"] * 3)
        await line.until(lambda: line.closed)
        assert time.monotonic() - began >= 0.19, "two of them were held up"
        assert texts(line) == ["in"]

    async def test_a_consumer_says_so_by_attributes(self, enforce: Enforce) -> None:
        class Strict(AsyncEcho):
            throttle_ladder = {"close": 2}
            throttle_close_codes = {"rate_limited": 4000}

        enforce(own=OWN)
        communicator = await opened(Strict.as_asgi())
        for text in ("in", "over", "over"):
            await communicator.send_to(text)
        assert await communicator.receive_from() == "in"
        assert (await communicator.receive_json_from())["code"] == "rate_limited"
        assert (await communicator.receive_output())["code"] == 4000
        await communicator.wait()

    async def test_the_middleware_takes_the_same_as_options(self, enforce: Enforce) -> None:
        enforce(own=OWN)
        line = await Line(ladder={"close": 1}, payload=lambda decision: f"{decision.rule}!").open()
        line.send("in", "over")
        await line.until(lambda: line.closed)
        assert line.frames == ["in", "own!"]

    @pytest.mark.row("A48")
    async def test_the_text_of_a_close_is_always_the_same(self, enforce: Enforce) -> None:
        """A48: nothing of what is inside, and nothing of who it is."""
        closes = []
        for name, rate in (("own", "1/min"), ("secret rule", "2/min")):
            enforce(**{name: {**OWN, "rate": rate}})
            line = await Line(ladder={"close": 1}).open()
            line.send("1", "2", "3")
            await line.until(lambda line=line: line.closed)
            closes.append(line.closed)
        reasons = [close["reason"].partition("; retry_after=")[0] for close in closes]
        assert reasons == ["rate limited"] * 2
        assert [set(close) for close in closes] == [{"type", "code", "reason"}] * 2
