"""Frames that go out: what is lost, how a client is told of it, and of which kinds the newest is kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.sockets import messages
from django_throttle.sockets.error_frames import DroppedFrames, continuity_payload
from tests.clock import LoopClock
from tests.doors import Enforce
from tests.sockets.guarded import Line, only

OUT = {"rate": "3/min", "events": ["send"], "key": "connection", "algorithm": "gcra"}
pytestmark = pytest.mark.usefixtures("loop_clock")


async def say(line: Line, *texts: str) -> None:
    for text in texts:
        await line.say({"type": "websocket.send", "text": text})


def shown(line: Line) -> list[str | int]:
    """What the client was sent: texts, and how many were lost in a gap."""
    return [frame.get("lost", frame["type"]) if isinstance(frame, dict) else frame for frame in line.frames]


def kind(event: dict[str, Any]) -> str | None:
    return event["text"][0] if event["text"][0] in "xy" else None


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
    async def test_a_gap_is_told_once_with_how_many_and_since_when(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "3/3s"})
        async with Line() as line:
            before = datetime.now(UTC)
            await say(line, *"abcdefgh")
            after = datetime.now(UTC)
            await line.until(lambda: line.told("continuity_lost"))
            (gap,) = line.told("continuity_lost")
            assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(gap["since"]) <= after
            await asyncio.sleep(3)
            await say(line, "i")
            assert shown(line) == ["a", "b", "c", 5, "i"]
            assert (only().sent, only().lost) == (4, 5)

    async def test_a_long_flood_is_told_of_once_a_second(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "10/s"})
        async with Line() as line:
            for _ in range(500):
                await say(line, "x")
                await asyncio.sleep(0.01)
            assert len(line.told("continuity_lost")) == pytest.approx(5, abs=1)
            await asyncio.sleep(2)
            assert line.frames.count("x") + sum(gap["lost"] for gap in line.told("continuity_lost")) == 500

    async def test_it_is_what_the_site_says(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/2s"})
        async with Line(continuity=lambda gap: f"{gap.lost} missing") as line:
            await say(line, *"abcde")
            await line.until(lambda: line.frames == ["a", "b", "3 missing"])

    async def test_who_closes_tells_of_the_gap_first(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/hour"})
        async with Line(coalesce=kind) as line:
            await say(line, *"abcdexyx")
            await line.say({"type": "websocket.close", "code": 1000})
            assert (shown(line), line.sent[-1]["type"]) == (["a", "b", 6], "websocket.close")
            assert open_sockets.everyone() == ()


class TestCoalescing:
    async def test_the_newest_of_a_kind_is_sent_when_there_is_room(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/2s"})
        async with Line(coalesce=kind) as line:
            await say(line, "a", "b", "x1", "y1", "x2", "c", "x3")
            await asyncio.sleep(5)
            assert [frame for frame in line.frames if isinstance(frame, str)] == ["a", "b", "y1", "x3"]
            assert sum(gap["lost"] for gap in line.told("continuity_lost")) == 3, "x1 and x2 overtaken, c left out"

    async def test_what_passes_overtakes_what_was_kept(self, enforce: Enforce, loop_clock: LoopClock) -> None:
        enforce(outward={**OUT, "rate": "1/s"})
        async with Line(coalesce=kind) as line:
            await say(line, "a", "x1")
            loop_clock.now += 1.1  # the loop stands still, so that nothing is sent in between
            await say(line, "x2")
            await asyncio.sleep(3)
            assert [frame for frame in line.frames if isinstance(frame, str)] == ["a", "x2"]

    async def test_kinds_are_bounded(self, enforce: Enforce, monkeypatch: Any) -> None:
        monkeypatch.setattr(messages, "MAX_KINDS", 3)
        enforce(outward={**OUT, "rate": "1/h"})
        async with Line(coalesce=lambda event: event["text"]) as line:
            await say(line, *"abcdef")
            assert only().lost == 2

    async def test_nothing_is_sent_after_the_end(self, enforce: Enforce) -> None:
        """An application may go on for a while: what it sends too much of must not be sent later, by nobody."""
        go_on = asyncio.Event()

        class Lasting(Line):
            async def echo(self, scope: Any, receive: Any, send: Any) -> None:
                await super().echo(scope, receive, send)
                await say(self, "x2", "lost")
                await go_on.wait()

        enforce(outward={**OUT, "rate": "1/s"})
        line = await Lasting(coalesce=kind).open()
        await say(line, "a", "x1", "lost")
        line.leave()
        await asyncio.sleep(10)
        assert line.frames == ["a"]
        go_on.set()
        await line.ended()
