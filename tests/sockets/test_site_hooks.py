"""A site's own functions that fail, or say what cannot be sent: sockets are told, counted and closed all the same."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.sockets import settings
from django_throttle.sockets.error_frames import Close, notice_payload
from tests.consumers import held
from tests.doors import Enforce, enforcer
from tests.inside import unsaid
from tests.sockets.guarded import Line
from tests.sockets.test_rule_change import SOCKETS, Pin, blocked, change

__all__ = ["change", "enforce"]

enforce = pytest.fixture(enforcer)
OWN = {"rate": "1/min", "key": "connection", "algorithm": "gcra"}


def fails(_: object) -> object:
    raise ZeroDivisionError


async def waits() -> object:
    return {"type": "error"}


JUNK: dict[str, Any] = {
    "raises": fails,
    "asynchronous": lambda _: waits(),
    "nothing": lambda _: None,
    "a set": lambda _: {1, 2},
    "keys of no JSON": lambda _: {("a", 1): 2},
    "no number": lambda _: float("nan"),
    "half a character": lambda _: "\ud800",
    "itself": lambda _: (loop := [], loop.append(loop))[0],
}
EACH = pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)


@pytest.fixture(autouse=True)
def complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(settings, monkeypatch)


class TestRefusals:
    @EACH
    async def test_a_refused_message_is_told_of_in_the_standard_frame(
        self, enforce: Enforce, junk: Any, caplog: Any
    ) -> None:
        enforce(own={**OWN, "events": ["message"]})
        line = await Line(payload=junk, ladder={"close": 3}).open()
        line.send("in", "over", "over", "over")
        await line.until(lambda: line.closed)
        assert line.task is not None
        await line.task
        assert (line.told("error")[0]["code"], line.closed["code"]) == ("rate_limited", 4429)
        gc.collect()  # a coroutine that nobody has waited for would say so now
        assert len([one for one in caplog.records if "the client gets the standard frame" in one.message]) == 1

    @EACH
    async def test_a_gap_is_told_of_in_the_standard_frame(self, enforce: Enforce, junk: Any) -> None:
        enforce(outward={**OWN, "events": ["send"]})
        line = await Line(continuity=junk).open()
        for text in "ab":
            await line.say({"type": "websocket.send", "text": text})
        await line.say({"type": "websocket.close"})
        assert line.told("continuity_lost")[0]["lost"] == 1
        await line.close()

    @pytest.mark.parametrize("refuse", ["http", "frame"])
    @EACH
    async def test_a_refused_handshake_is_answered(self, enforce: Enforce, junk: Any, refuse: str) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 1})
        first = await Line().open()
        line = await Line(payload=junk, refuse=refuse).open()
        assert line.task is not None
        await line.task
        assert line.closed is not None
        assert line.closed["code"] == 4430
        assert held(store) == 1
        await first.close()

    @pytest.mark.parametrize("junk", [fails, lambda _: []])
    async def test_a_frame_whose_kind_cannot_be_said_has_none(self, enforce: Enforce, junk: Any, caplog: Any) -> None:
        enforce(outward={**OWN, "events": ["send"]})
        line = await Line(coalesce=junk).open()
        for text in "abc":
            await line.say({"type": "websocket.send", "text": text})
        await line.say({"type": "websocket.close"})
        assert line.told("continuity_lost")[0]["lost"] == 2
        assert caplog.text.count("the frame is taken to be of no kind") == 1
        await line.close()


class TestGoodbyes:
    @EACH
    async def test_who_is_blocked_is_closed_and_counted_no_more(self, enforce: Enforce, change: Pin, junk: Any) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 5})
        line = await Line(payload=junk).open()
        change(overrides=(blocked(),))
        await line.until(lambda: line.closed)
        assert line.task is not None
        await line.task
        assert (line.told("error")[0]["code"], line.closed["code"], held(store)) == ("blocked", 4403, 0)

    async def test_what_cannot_be_sent_is_left_out_of_a_goodbye(self, enforce: Enforce, caplog: Any) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 5})
        line = await Line().open()
        open_sockets.everyone()[0].start_close(Close(4403, "blocked", {("a", 1): 2}))
        await line.until(lambda: line.closed)
        assert line.task is not None
        await line.task
        assert ([event["type"] for event in line.sent[1:]], held(store)) == (["websocket.close"], 0)
        assert "cannot be encoded" in caplog.text

    async def test_a_standard_one_goes_as_it_is(self, enforce: Enforce) -> None:
        enforce()
        line = await Line().open()
        open_sockets.everyone()[0].close(4410, "closed", notice_payload("closed", "Closed by an operator."))
        await line.until(lambda: line.closed)
        assert line.told("error")[0]["code"] == "closed"
