"""How sockets are closed from here: whatever client and application do meanwhile, both hear of it and nothing hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.sockets.connection import CLOSE_TIMEOUT
from django_throttle.sockets.error_frames import SEND_TIMEOUT
from tests.clock import LoopClock
from tests.consumers import TWO_SOCKETS, held
from tests.doors import Enforce
from tests.sockets.guarded import Deaf, Line, accepting, only

GOODBYE = {"type": "websocket.disconnect", "code": 4000, "reason": "goodbye"}
pytestmark = pytest.mark.usefixtures("loop_clock")


def says(text: str) -> dict[str, str]:
    return {"type": "websocket.send", "text": text}


async def test_a_busy_application_hears_of_it_next(enforce: Enforce) -> None:
    go_on, heard = asyncio.Event(), []

    @accepting
    async def busy(receive: Any, send: Any) -> None:
        await go_on.wait()
        await send(says("swallowed"))
        heard.append(await receive())

    store = enforce(sockets=TWO_SOCKETS)
    line = await Line(inside=busy).open()
    line.send("never seen")
    only().close(4000, "goodbye")
    await line.closing()
    assert held(store) == 0, "its slot does not wait for the application"
    go_on.set()
    await line.ended()
    assert (heard, line.frames) == ([GOODBYE], [])


async def test_a_cancellation_from_outside_is_no_goodbye(enforce: Enforce) -> None:
    store = enforce(sockets=TWO_SOCKETS)
    line = await Line().open()
    only().close(4000, "goodbye")
    line.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await line.ended()
    assert held(store) == 0


async def test_a_client_that_reads_nothing_keeps_nobody(enforce: Enforce, loop_clock: LoopClock) -> None:
    """What its application sends is cut, wherever it does so, and it hears of the end in its next receive."""
    heard: list[Any] = []

    @accepting
    async def ticker(receive: Any, send: Any) -> None:
        beside = asyncio.ensure_future(send(says("beside")))
        await send(says("tick"))
        await send({"type": "websocket.close"})
        heard.append(await receive())
        await beside

    store = enforce(sockets=TWO_SOCKETS)
    for app in (None, ticker):
        line, began = await Deaf(inside=app).open(), loop_clock()
        only().close(4000, "goodbye", {"type": "error"})
        await line.ended()
        assert loop_clock() - began == pytest.approx(2 * SEND_TIMEOUT, abs=0.2)
        assert held(store) == 0
    assert heard == [GOODBYE]
    assert [event["type"] for event in line.sent] == ["websocket.accept"]


async def test_who_sends_and_never_listens_is_let_be_for_a_moment(enforce: Enforce, loop_clock: LoopClock) -> None:
    """Then it gets what a server gives to whoever sends to nobody, and ends."""

    @accepting
    async def ticker(receive: Any, send: Any) -> None:
        while True:
            await send(says("tick"))
            await asyncio.sleep(0.1)

    enforce()
    line = await Line(inside=ticker).open()
    began = loop_clock()
    only().close(4000, "goodbye")
    await line.ended()  # without an error: it is no fault of the application
    assert loop_clock() - began == pytest.approx(CLOSE_TIMEOUT, abs=0.2)
    assert line.sent[-1]["type"] == "websocket.close"


@pytest.mark.parametrize("error", [ConnectionAbortedError, RuntimeError])
async def test_but_errors_of_an_open_socket_are_the_application_s(enforce: Enforce, error: Any) -> None:
    class Failing(Line):
        async def take(self, event: Any) -> None:
            if event.get("text") == "x":
                raise error
            await super().take(event)

    enforce()
    line = await Failing().open()
    line.send("x")
    with pytest.raises(error):
        await line.ended()
    assert open_sockets.everyone() == ()


async def test_what_crosses_the_application_s_own_close_reaches_no_one(enforce: Enforce) -> None:
    """A client chooses how long that takes, and nobody would be charged for it."""
    taken, heard = asyncio.Event(), []

    class Slow(Line):
        async def take(self, event: Any) -> None:
            if event["type"] == "websocket.close":
                await taken.wait()
            await super().take(event)

    @accepting
    async def closing(receive: Any, send: Any) -> None:
        close = asyncio.ensure_future(send({"type": "websocket.close", "code": 4001}))
        await asyncio.sleep(0)
        for _ in range(10):
            await send(says("too late"))
        while (event := await receive())["type"] != "websocket.disconnect":
            heard.append(event)
        await close

    rule = {"rate": "3/h", "key": "ip"}
    enforce(inward={**rule, "events": ["message"]}, outward={**rule, "events": ["send"]})
    line = await Slow(inside=closing).open()
    line.send(*"abcdefghij")
    line.leave()
    await line.until(line.queue.empty)
    taken.set()
    await line.ended()
    assert (heard, [event["type"] for event in line.sent]) == ([], ["websocket.accept", "websocket.close"])
