"""Frames that come in and go out: what passes, waits or is lost, what a client is told, and who else hears of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.utils.translation import gettext_lazy

from django_throttle.local.open_sockets import open_sockets
from django_throttle.observe import reports
from django_throttle.observe.reports import ident_for_logs
from django_throttle.runtime import is_on_event_loop
from django_throttle.websockets import messages
from django_throttle.websockets.counters import MAX_DELAY
from django_throttle.websockets.error_frames import DroppedFrames, continuity_payload, encode
from tests.clock import FrozenClock, LoopClock
from tests.consumers import EVERY_KIND, TWO_FRAMES, TWO_SOCKETS, held
from tests.doors import BOTH, Enforce
from tests.inside import counters
from tests.stores.conftest import evaluations
from tests.websockets.guarded import Line, Live, accepting, becomes, only, texts

OWN = {"rate": "3/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
OUT = {**OWN, "events": ["send"]}
SHARED = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
AT_ONCE = pytest.mark.usefixtures("loop_clock")


@BOTH
async def test_a_refused_frame_is_dropped_and_told_once(enforce: Enforce, clock: FrozenClock) -> None:
    enforce(frames=TWO_FRAMES)
    clock.to(17.25)
    async with Line(answers="once") as line:
        line.send("one", "two", "three", "four")
        assert await line.error() == {
            "type": "error", "code": "rate_limited", "detail": "Rate limit exceeded. Try again in 43 seconds.",
            "rule": "frames", "limit": 2, "remaining": 0, "window": 60, "retry_after": 42.75,
            "reference": ident_for_logs("everyone"),
        }  # fmt: skip
        await line.until(lambda: only().refused == 2)
        clock.to(60)
        line.send("five")
        assert await line.received(3) == ["one", "two", "five"]
        assert len(line.told("error")) == 1


@EVERY_KIND
async def test_closes_with_4429_after_ten_in_a_row(enforce: Enforce, app: Any) -> None:
    store = enforce(sockets=TWO_SOCKETS, frames={**TWO_FRAMES, "rate": "1/min"})
    line = await Line(app).open()
    line.send(*["{}"] * 12)
    reason = "rate limited; retry_after=60"
    assert await line.closing() == {"type": "websocket.close", "code": 4429, "reason": reason}
    await line.ended()
    assert (line.frames[0], len(line.told("error")), len(line.frames), held(store)) == ({}, 5, 6, 0)


async def test_what_follows_our_close_reaches_no_one(enforce: Enforce) -> None:
    codes: list[int] = []

    @accepting
    async def stubborn(receive: Any, send: Any) -> None:
        while len(codes) < 2:
            event = await receive()
            if event["type"] == "websocket.disconnect":
                codes.append(event["code"])
                await send({"type": "websocket.send", "text": "goodbye"})
                await send({"type": "websocket.close"})

    enforce(frames={**TWO_FRAMES, "cost": 2})
    line = await Line(inside=stubborn).open()
    line.send(*["x"] * 14)
    await line.close()
    assert codes == [4429, 1000]
    assert [event["type"].partition(".")[2] for event in line.sent] == ["accept", *["send"] * 5, "close"]
    assert line.frames == line.told("error")


async def test_before_accept_nothing_is_said(enforce: Enforce) -> None:
    async def hesitant(scope: Any, receive: Any, send: Any) -> None:
        events = [await receive() for _ in range(3)]
        assert [event["type"].partition(".")[2] for event in events] == ["connect", "receive", "disconnect"]

    enforce(frames={**TWO_FRAMES, "cost": 2})
    line = Line(inside=hesitant)
    opening = asyncio.ensure_future(line.open())
    await asyncio.sleep(0)
    line.send("in", *["over"] * 20)
    line.leave()
    await opening
    assert line.sent == []


def test_a_payload_is_text_bytes_or_json() -> None:
    assert (encode("as it is"), encode(b"\x00"), encode(gettext_lazy("later"))) == ("as it is", b"\x00", "later")
    number, moment = UUID(int=7), datetime(2026, 11, 20, 12, tzinfo=UTC)
    payload = {"text": gettext_lazy("later"), "id": number, "price": Decimal("1.50"), "at": moment}
    assert json.loads(encode(payload)) == {
        "text": "later", "id": str(number), "price": "1.50", "at": "2026-11-20T12:00:00Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "ladder", "passed", "seconds"),
    [("1/s", {"error": 0, "delay": 1}, 3, 2), ("1/min", {"error": 0, "delay": 1, "close": 3}, 1, 2 * MAX_DELAY)],
    ids=["until it may pass", "as long as any may be"],
)
async def test_a_refused_frame_is_held_up(
    enforce: Enforce, loop_clock: LoopClock, rate: str, ladder: Any, passed: int, seconds: float
) -> None:
    enforce(own={**OWN, "rate": rate})
    line = await Line(ladder=ladder).open()
    began = loop_clock()
    line.send(*"abcd"[: 3 if passed == 3 else 4])
    await line.until(lambda: len(texts(line)) == passed and (passed == 3 or line.closed))
    assert loop_clock() - began == pytest.approx(seconds, abs=0.1)
    assert texts(line) == [*"abc"[:passed]]


async def test_each_socket_has_a_budget_of_its_own_which_comes_first(enforce: Enforce) -> None:
    store = enforce(own=OWN, shared=SHARED)
    async with Line() as first, Line() as second:
        first.send("1", "2", "3", "4")
        error = await first.error()
        second.send("1", "2", "3")
        assert await second.received(3) == texts(first) == ["1", "2", "3"]
    assert (error["code"], error["rule"], error["limit"], error["window"]) == ("rate_limited", "own", 3, 60)
    assert 0 < error["retry_after"] <= 20
    assert [state[-1] for state, _ in counters(store).values()] == [6]


@pytest.mark.usefixtures("never_closed")
async def test_what_others_refuse_costs_a_socket_s_own_rule_nothing(enforce: Enforce, clock: FrozenClock) -> None:
    enforce(own=OWN, shared={**SHARED, "rate": "1/min"})
    async with Line() as line:
        line.send(*"123456")
        for minute in (1, 2):
            await line.until(lambda minute=minute: only().refused == 5 and len(texts(line)) == minute)
            clock.to(60 * minute)
            line.send("again")
        await line.received(3)
        assert {error["rule"] for error in line.told("error")} == {"shared"}, "its own three were never used up"


async def test_a_frame_costs_its_bytes(enforce: Enforce) -> None:
    enforce(volume={**OWN, "rate": "10/min", "unit": "bytes"})
    async with Line() as line:
        line.send("x" * 11)
        assert (await line.error())["retry_after"] is None, "larger than the budget"
        only().reset()
        await asyncio.sleep(0)
        line.send("12345", "üü", "", "12")
        assert (await line.error(2))["remaining"] == 1
        assert texts(line) == ["12345", "üü", ""]


reported: Counter[tuple[str, str]] = Counter()


def count(report: reports.Report) -> None:
    for outcome in report.decision.outcomes if report.call.events == ("message",) else ():
        reported[outcome.rule, outcome.verdict] += 1


@pytest.mark.parametrize("rules", [{"own": OWN}, {"shared": SHARED}, {"own": OWN, "shared": SHARED}])
@pytest.mark.usefixtures("never_closed")
async def test_every_message_is_reported_once(enforce_live: Live, rules: dict[str, Any]) -> None:
    reported.clear()
    enforce_live(**rules, HOOKS=["tests.websockets.test_messages.count"])
    passed = 3 if "own" in rules else 60
    async with Line() as line:
        line.send(*["x"] * 60)
        await line.received(passed)
        await becomes(lambda: reported.total() == passed * len(rules) + 60 - passed)
    assert {name: reported[name, "allowed"] for name in rules} == dict.fromkeys(rules, passed)
    assert reported["own", "refused"] == 60 - passed


@pytest.mark.parametrize("key", ["user", "connection"])
@AT_ONCE
@pytest.mark.usefixtures("never_closed")
async def test_who_changes_groups_has_another_plan(enforce: Enforce, monkeypatch: Any, key: str) -> None:
    groups = [[], ["premium"], []]

    def names(user: Any) -> frozenset[str]:
        if is_on_event_loop():
            raise SynchronousOnlyOperation
        return frozenset(groups.pop(0) if len(groups) > 1 else groups[0])

    monkeypatch.setattr("django_throttle.identity.keys.group_names", names)
    enforce(shared={**SHARED, "rate": "2/h", "key": key, "plans": {"group:premium": "5/h"}})
    async with Line(user=User(pk=7)) as line:
        for number, passed in enumerate((2, 5, 5), 1):
            line.send(*"x" * (passed - len(texts(line)) + 1))
            await line.until(lambda number=number: only().refused == number)
            assert len(texts(line)) == passed
            await asyncio.sleep(1.01)


def nobody(scope: Any) -> Any:
    return object()


@pytest.mark.usefixtures("never_closed")
async def test_a_key_of_the_site_that_fails_leaves_the_socket_and_the_limit(enforce: Enforce) -> None:
    enforce(shared={**SHARED, "rate": "2/h", "key": "tests.websockets.test_messages.nobody"})
    async with Line() as line:
        line.send(*"xxx")
        await line.until(lambda: only().refused == 1)
        assert len(texts(line)) == 2


@pytest.mark.row("A44")
@pytest.mark.parametrize("kinds", [("own",), ("shared",), ("own", "shared")], ids="+".join)
@pytest.mark.usefixtures("never_closed")
async def test_a44_a_flood_is_decided_where_it_comes_in_and_others_are_served(
    enforce_live: Live, redis_server: Any, kinds: tuple[str, ...], figure: Callable[..., None]
) -> None:
    flood = 5_000
    rules = {"own": {**OWN, "rate": "50/s"}, "shared": {**SHARED, "rate": "600/min"}}
    enforce_live(**{kind: rules[kind] for kind in kinds})
    loop = asyncio.get_running_loop()
    async with Line() as line:
        flooded = only()
        async with Line(address="198.51.100.7") as other:
            with redis_server.client() as redis:
                before, began = evaluations(redis), loop.time()
                line.send(*["x"] * flood)
                other.send("hello")
                await other.received(1)
                assert flooded.refused + len(texts(line)) < flood
                await line.until(lambda: flooded.refused + len(texts(line)) == flood)
                seconds, calls = loop.time() - began, evaluations(redis) - before
        figure(f"questions to Redis of {flood:,} messages", calls)
        # Those that pass, and what is asked as room comes back, ten times a second; of a socket's own rule none.
        assert calls <= ("shared" in kinds) * (len(texts(line)) + 1 + 2 * 10 * (1 + seconds))
        assert len(line.told("error")) <= 5 + seconds


async def say(line: Line, *texts: str) -> None:
    for text in texts:
        await line.say({"type": "websocket.send", "text": text})


def shown(line: Line) -> list[str | int]:
    return [frame.get("lost", frame["type"]) if isinstance(frame, dict) else frame for frame in line.frames]


def kind(event: dict[str, Any]) -> str | None:
    return event["text"][0] if event["text"][0] in "xy" else None


def test_the_frame_that_tells_of_a_gap() -> None:
    since = datetime(2026, 11, 20, 12, 34, 56, 789_999, UTC)
    assert continuity_payload(DroppedFrames(7, since)) == {
        "type": "continuity_lost", "lost": 7, "since": "2026-11-20T12:34:56.789Z",
        "detail": "7 messages were not sent to you, as there were too many.",
    }  # fmt: skip
    assert "1 message was" in continuity_payload(DroppedFrames(1, since))["detail"]


@pytest.mark.usefixtures("never_closed")
async def test_frames_that_are_bought_ahead_cost_what_the_consumer_says(enforce_live: Live) -> None:
    enforce_live(shared={**SHARED, "rate": "40/h", "prepaid": True})
    async with Line(cost=2) as line:
        for number in range(1, 23):
            line.send("x")
            await line.until(lambda: only().refused + len(texts(line)) == number)  # noqa: B023 (it is awaited here)
        assert only().refused == 2


@AT_ONCE
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

    async def test_who_closes_tells_of_the_gap_first(self, enforce: Enforce) -> None:
        enforce(outward={**OUT, "rate": "2/hour"})
        async with Line(coalesce=kind) as line:
            await say(line, *"abcdexyx")
            await line.say({"type": "websocket.close", "code": 1000})
            assert (shown(line), line.sent[-1]["type"]) == (["a", "b", 6], "websocket.close")
            assert open_sockets.all() == ()


@AT_ONCE
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
