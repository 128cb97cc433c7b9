"""What is done about refused messages: dropped, told, held up, closed; the more in a row, the harder."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any
from unittest.mock import ANY

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.process import open_sockets
from django_throttle.sockets import inbound
from django_throttle.sockets.counters import MAX_DELAY
from tests.consumers import AsyncEcho, opened
from tests.doors import Enforce, enforcer
from tests.servers import slack
from tests.sockets.guarded import Line, texts

enforce = pytest.fixture(enforcer)
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
        monkeypatch.setattr(inbound, "MAX_DELAY", 0.1)
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
