"""Sockets that are silent, or too old, are told and closed; time passes at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest

from tests.clock import LoopClock
from tests.consumers import TWO_SOCKETS, AsyncEcho, held
from tests.doors import Enforce
from tests.sockets.guarded import Deaf, Line, accepting, becomes, only, texts

AT_ONCE = pytest.mark.usefixtures("loop_clock")


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
        "type": "error",
        "code": "idle",
        "detail": "Nothing has come from you for too long.",
        **dict.fromkeys(("rule", "limit", "remaining", "window")),
        "retry_after": 0,
    }
    assert line.closed == {"type": "websocket.close", "code": 4408, "reason": "idle"}
    await line.ended()
    assert held(store) == 0
    assert line.got[-1] == {"type": "websocket.disconnect", "code": 4408, "reason": "idle"}


async def test_a_client_of_a_busy_application_is_not_idle(enforce: Enforce, loop_clock: LoopClock) -> None:
    """And one that looks up now and then has listened all the same."""
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


@AT_ONCE
async def test_a_client_that_takes_no_frame_for_so_long_is(enforce: Enforce) -> None:
    """Else an application that sends to a client that has vanished would keep its slot for ever."""

    @accepting
    async def sending(receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": "news"})
        assert (await receive())["reason"] == "idle"

    store = enforce(sockets=TWO_SOCKETS, SOCKET_IDLE_TIMEOUT=2)
    line = await Deaf(inside=sending).open()
    await line.ended()
    assert held(store) == 0


@AT_ONCE
async def test_an_old_socket_is_closed_however_busy(enforce: Enforce) -> None:
    enforce(SOCKET_MAX_AGE=3)
    line = await Line().open()
    while not line.closed:
        line.send("busy")
        await asyncio.sleep(0.2)
    assert (line.told("error")[0]["code"], line.closed["code"]) == ("too_old", 4408)
    assert len(texts(line)) == pytest.approx(15, abs=2)


@pytest.mark.row("A46")
@AT_ONCE
async def test_a46_silent_sockets_make_room(enforce: Enforce) -> None:
    """Every slot of an address is held by somebody who says nothing; who talks stays."""
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
        *((None, {name: 0}) for name in ("SOCKET_ACCEPT_TIMEOUT", "SOCKET_IDLE_TIMEOUT", "SOCKET_MAX_AGE")),
        (Patient.as_asgi(), {"SOCKET_IDLE_TIMEOUT": 1, "SOCKET_MAX_AGE": 1}),
    ],
)
@AT_ONCE
async def test_zero_is_never(enforce: Enforce, app: Any, options: dict[str, int]) -> None:
    enforce(**{"SOCKET_ACCEPT_TIMEOUT": 1, **options})
    async with Line(app) as line:
        await asyncio.sleep(100_000)
        assert line.closed is None


async def test_nothing_is_left_of_a_socket_that_is_over(enforce: Enforce) -> None:
    own = {"rate": "1/min", "events": ["message", "send"], "key": "connection", "algorithm": "gcra"}
    enforce(sockets=TWO_SOCKETS, own=own, SOCKET_IDLE_TIMEOUT=60)
    gc.collect()
    gc.disable()
    try:
        async with Line() as line:
            line.send("in", "over")
            await line.error()
            ghost = weakref.ref(only())
        line.say = line.task = None
        assert "django_throttle" not in line.scope
        await becomes(lambda: ghost() is None)  # no garbage collector is needed
    finally:
        gc.enable()
