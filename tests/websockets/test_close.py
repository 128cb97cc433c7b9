"""How sockets are closed from here, also silent and old ones: client and application hear of it and nothing hangs."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.local.open_sockets import open_sockets
from django_throttle.websockets.connection import CLOSE_TIMEOUT
from django_throttle.websockets.error_frames import SEND_TIMEOUT
from tests.clock import LoopClock
from tests.consumers import TWO_SOCKETS, AsyncEcho, held
from tests.doors import Enforce
from tests.websockets.guarded import Deaf, Line, accepting, only, texts

GOODBYE = {"type": "websocket.disconnect", "code": 4000, "reason": "goodbye"}
pytestmark = pytest.mark.usefixtures("loop_clock")


def says(text: str) -> dict[str, str]:
    return {"type": "websocket.send", "text": text}


async def test_a_client_that_reads_nothing_keeps_nobody(enforce: Enforce, loop_clock: LoopClock) -> None:
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
    assert open_sockets.all() == ()


async def test_what_crosses_the_application_s_own_close_reaches_no_one(enforce: Enforce) -> None:
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


async def test_a_silent_socket_is_closed_and_told(enforce: Enforce, loop_clock: LoopClock) -> None:
    store = enforce(sockets=TWO_SOCKETS, SOCKET_IDLE_TIMEOUT=3)
    line = await Line().open()
    for _ in range(4):
        await asyncio.sleep(2)
        line.send("still here")
        await asyncio.sleep(0)
    last = loop_clock()
    await line.closing()
    assert loop_clock() - last == pytest.approx(3, abs=0.2)
    (error,) = line.told("error")
    assert error == {
        "type": "error", "code": "idle", "detail": "This connection was idle for too long.",
        **dict.fromkeys(("rule", "limit", "remaining", "window")), "retry_after": 0,
    }  # fmt: skip
    assert line.closed == {"type": "websocket.close", "code": 4408, "reason": "idle"}
    await line.ended()
    assert held(store) == 0
    assert line.got[-1] == {"type": "websocket.disconnect", "code": 4408, "reason": "idle"}


async def test_a_client_of_a_busy_application_is_not_idle(enforce: Enforce, loop_clock: LoopClock) -> None:
    enforce()
    go_on, heard = asyncio.Event(), []

    @accepting
    async def busy(receive: Any, send: Any) -> None:
        await go_on.wait()
        event: Any = {"type": ""}
        while event["type"] != "websocket.disconnect":
            with suppress(TimeoutError):
                event = await asyncio.wait_for(receive(), 0.2)
                heard.append(event.get("text"))

    line = await Line(inside=busy, idle_timeout=2).open()
    line.send(*"abcde")
    await asyncio.sleep(5)
    assert line.closed is None
    began = loop_clock()
    go_on.set()
    assert ((await line.closing())["reason"], heard[:5]) == ("idle", [*"abcde"])
    assert loop_clock() - began == pytest.approx(2, abs=0.2)


async def test_a_client_that_an_outer_door_hears_is_not_silent_to_those_inside(
    enforce: Enforce, loop_clock: LoopClock
) -> None:
    enforce(outside={"rate": "1/h", "key": "everyone", "events": ["message"], "scopes": ["outside"]})
    line = Line(idle_timeout=2)
    for scope in ("middle", "outside"):
        line.app = ThrottleMiddleware(line.app, scope)
    await line.open()
    for text in "abcde":
        await asyncio.sleep(1.5)
        line.send(text)
        await line.until(line.queue.empty)
    assert line.closed is None and texts(line) == ["a"]
    assert (await line.closing())["reason"] == "idle"


async def test_a_client_that_takes_no_frame_for_so_long_is(enforce: Enforce) -> None:
    @accepting
    async def sending(receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": "news"})
        assert (await receive())["reason"] == "idle"

    store = enforce(sockets=TWO_SOCKETS, SOCKET_IDLE_TIMEOUT=2)
    line = await Deaf(inside=sending).open()
    await line.ended()
    assert held(store) == 0


async def test_an_old_socket_is_closed_however_busy(enforce: Enforce) -> None:
    enforce()
    line = await Line(max_age=3).open()
    while not line.closed:
        line.send("busy")
        await asyncio.sleep(0.2)
    assert (line.told("error")[0]["code"], line.closed["code"]) == ("too_old", 4408)
    assert len(texts(line)) == pytest.approx(15, abs=2)


@pytest.mark.row("A46")
async def test_a46_silent_sockets_make_room(enforce: Enforce) -> None:
    store = enforce(sockets={**TWO_SOCKETS, "limit": 3, "key": "ip"}, SOCKET_IDLE_TIMEOUT=3)
    silent = [await Line().open() for _ in range(2)]
    async with Line() as talking:
        assert (await Line().open()).closed
        while held(store) > 1:
            talking.send("still here")
            await asyncio.sleep(0.2)
        assert [(line.told("error")[0]["code"], line.closed["code"]) for line in silent] == [("idle", 4408)] * 2
        assert (await Line().open()).closed is None
        assert talking.closed is None


class Patient(AsyncEcho):
    throttle_idle_timeout = throttle_max_age = 0


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (None, {"SOCKET_IDLE_TIMEOUT": 0}),
        (Patient.as_asgi(), {"SOCKET_IDLE_TIMEOUT": 1}),
    ],
)
async def test_zero_is_never(enforce: Enforce, app: Any, options: dict[str, int]) -> None:
    enforce(**options)
    async with Line(app) as line:
        await asyncio.sleep(100_000)
        assert line.closed is None
