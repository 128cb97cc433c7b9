"""How sockets end: unaccepted, silent, too old, closed from elsewhere; the slot is free in the same moment."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import suppress
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.sockets import error_frames
from django_throttle.sockets.connection import Deadlines
from tests.consumers import TWO_SOCKETS, AsyncEcho, held, opened, socket
from tests.doors import Enforce, enforcer
from tests.servers import slack
from tests.sockets.guarded import Deaf, Line, becomes, only, texts

enforce = pytest.fixture(enforcer)


class TestDeadlines:
    def test_a_loop_that_has_ended_is_kept_by_nobody(self) -> None:
        loops = []

        async def opened() -> None:
            loops.append(weakref.ref(asyncio.get_running_loop()))
            deadlines = Deadlines(lambda why: None, lambda: 0.0)
            deadlines.accept(0, 0)
            deadlines.end()

        for _ in range(3):
            asyncio.run(opened())
        gc.collect()
        assert [loop() for loop in loops] == [None] * 3

    async def test_a_silent_socket_is_closed_and_told(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS, SOCKET_IDLE_TIMEOUT=0.3)
        line = await Line().open()
        began = time.monotonic()
        for _ in range(4):
            await asyncio.sleep(0.15)
            line.send("still here")
        await line.until(lambda: line.closed)
        seconds = time.monotonic() - began
        print(f"closed after {seconds:.2f} s, the last frame came at 0.6 s")
        assert 0.85 <= seconds <= 0.9 + slack(1.0)
        assert line.told("error") == [
            {
                "type": "error",
                "code": "idle",
                "detail": "Nothing has come from you for too long.",
                **dict.fromkeys(("rule", "limit", "remaining", "window")),
                "retry_after": 0,
            }
        ]
        assert line.closed == {"type": "websocket.close", "code": 4408, "reason": "idle"}
        assert line.task is not None
        await line.task
        assert held(store) == 0
        assert line.got[-1] == {"type": "websocket.disconnect", "code": 4408, "reason": "idle"}

    async def test_what_is_sent_to_a_client_is_no_sign_of_life(self, enforce: Enforce) -> None:
        enforce()
        line = await Line(idle_timeout=0.2).open()
        async with asyncio.timeout(slack(10.0)):
            while not line.closed:
                await line.say({"type": "websocket.send", "text": "tick"})
                await asyncio.sleep(0.02)
        assert line.told("error")[0]["code"] == "idle"

    async def test_who_speaks_to_an_application_that_is_busy_is_not_idle(self, enforce: Enforce) -> None:
        enforce()
        go_on, heard = asyncio.Event(), []

        async def busy(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await go_on.wait()
            while (event := await receive())["type"] != "websocket.disconnect":
                heard.append(event["text"])

        line = await Line(ThrottleMiddleware(busy, "chat", idle_timeout=0.2)).open()
        line.send(*"abcde")
        await asyncio.sleep(0.5)
        assert line.closed is None
        began = time.monotonic()
        go_on.set()
        await line.until(lambda: line.closed)
        assert (heard, line.closed["reason"]) == ([*"abcde"], "idle")
        assert time.monotonic() - began >= 0.19

    async def test_who_takes_no_frame_for_so_long_is(self, enforce: Enforce, monkeypatch: Any) -> None:
        """Else an application that sends to a client that has vanished would keep its slot for ever."""
        monkeypatch.setattr(error_frames, "SEND_TIMEOUT", 0.05)
        store = enforce(sockets=TWO_SOCKETS, SOCKET_IDLE_TIMEOUT=0.2)

        async def sending(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": "news"})
            assert (await receive())["reason"] == "idle"

        line = Deaf(ThrottleMiddleware(sending, "chat"))
        await line.open()
        assert line.task is not None
        await asyncio.wait({line.task}, timeout=slack(5.0))
        assert (line.task.done(), held(store)) == (True, 0)
        await line.task

    async def test_silence_counts_from_when_the_application_has_accepted(self, enforce: Enforce) -> None:
        enforce()

        accepted = 0.0

        async def late(scope: Any, receive: Any, send: Any) -> None:
            nonlocal accepted
            await receive()
            listening = asyncio.ensure_future(receive())
            await asyncio.sleep(0.4)
            accepted = time.monotonic()
            await send({"type": "websocket.accept"})
            await listening

        line = await Line(ThrottleMiddleware(late, "chat", idle_timeout=0.3)).open()
        await line.until(lambda: line.closed)
        assert time.monotonic() - accepted >= 0.29
        assert line.closed["reason"] == "idle"

    async def test_an_application_that_looks_up_now_and_then_has_listened_all_the_same(self, enforce: Enforce) -> None:
        enforce()

        async def looking(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            event = {"type": ""}
            while event["type"] != "websocket.disconnect":
                with suppress(TimeoutError):
                    event = await asyncio.wait_for(receive(), 0.02)

        line = await Line(ThrottleMiddleware(looking, "chat", idle_timeout=0.2)).open()
        await line.until(lambda: line.closed)
        assert line.closed["reason"] == "idle"

    async def test_an_old_socket_is_closed_however_busy(self, enforce: Enforce) -> None:
        enforce(SOCKET_MAX_AGE=0.3)
        line = await Line().open()
        async with asyncio.timeout(slack(10.0)):
            while not line.closed:
                line.send("busy")
                await asyncio.sleep(0.02)
        assert (line.told("error")[0]["code"], line.closed["code"]) == ("too_old", 4408)

    async def test_a_consumer_has_its_own_and_may_have_none(self, enforce: Enforce) -> None:
        class Patient(AsyncEcho):
            throttle_idle_timeout = 0
            throttle_max_age = 0

        class Hasty(AsyncEcho):
            throttle_idle_timeout = 0.05
            throttle_close_codes = {"idle": 4001}

        enforce(SOCKET_IDLE_TIMEOUT=0.1, SOCKET_MAX_AGE=0.1)
        patient, hasty = await opened(Patient.as_asgi()), await opened(Hasty.as_asgi())
        assert (await hasty.receive_json_from())["code"] == "idle"
        assert (await hasty.receive_output())["code"] == 4001
        await patient.send_to("hello")
        assert await patient.receive_from() == "hello"
        await patient.disconnect()

    @pytest.mark.row("A42")
    async def test_a42_a_handshake_that_is_never_accepted_gives_its_slot_back(self, enforce: Enforce) -> None:
        heard: list[Any] = []

        async def never(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            heard.append(await receive())
            await send({"type": "websocket.accept"})  # too late: nobody hears it

        store = enforce(sockets={**TWO_SOCKETS, "limit": 5}, SOCKET_ACCEPT_TIMEOUT=0.5)
        lines = []
        for _ in range(5):
            line = Line(ThrottleMiddleware(never, "chat"))
            opening = asyncio.ensure_future(line.open())
            lines.append((line, opening))
        while held(store) < 5:
            assert not any(opening.done() for _, opening in lines)
            await asyncio.sleep(0.01)
        for line, opening in lines:
            await opening
            assert line.sent == [{"type": "websocket.close", "code": 4408, "reason": "not accepted"}]
        assert held(store) == 0
        for line, _ in lines:
            assert line.task is not None
            await line.task
        assert heard == [{"type": "websocket.disconnect", "code": 4408, "reason": "not accepted"}] * 5

    async def test_a_browser_is_told_in_a_frame_that_nobody_accepted_it(self, enforce: Enforce) -> None:
        async def never(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await receive()

        enforce(SOCKET_ACCEPT_TIMEOUT=0.05)
        line = Line(ThrottleMiddleware(never, "chat", refuse="frame"))
        line.scope["subprotocols"] = ["v2"]
        await line.open()
        await line.until(lambda: line.closed)
        assert line.sent[0] == {"type": "websocket.accept", "subprotocol": "v2"}
        assert line.told("error")[0]["code"] == "not_accepted"

    async def test_an_accepted_socket_has_all_the_time(self, enforce: Enforce) -> None:
        enforce(SOCKET_ACCEPT_TIMEOUT=0.05)
        line = await Line().open()
        await asyncio.sleep(0.1)
        line.send("hello")
        await line.until(lambda: texts(line) or line.closed)
        assert (texts(line), line.closed) == (["hello"], None)
        await line.close()

    @pytest.mark.parametrize("setting", ["SOCKET_ACCEPT_TIMEOUT", "SOCKET_IDLE_TIMEOUT", "SOCKET_MAX_AGE"])
    async def test_zero_is_never(self, enforce: Enforce, setting: str) -> None:
        enforce(**{"SOCKET_ACCEPT_TIMEOUT": 0, setting: 0})
        line = await Line().open()
        assert only()._deadlines._timer is None  # type: ignore[attr-defined]
        await line.close()


class TestLive:
    async def test_a_reset_clears_what_a_socket_remembers(self, enforce: Enforce) -> None:
        enforce(own={"rate": "1/min", "events": ["message"], "key": "connection", "algorithm": "gcra"})
        line = await Line().open()
        line.send("in", *["over"] * 9)
        await line.until(lambda: only().refused == 9)
        only().reset()
        await asyncio.sleep(0)
        line.send("in", *["over"] * 9)
        await line.until(lambda: open_sockets.everyone() and only().refused == 18)
        assert texts(line) == ["in", "in"]
        assert (len(line.told("error")), line.closed) == (2, None)
        await line.close()

    async def test_nothing_is_left_of_a_socket_that_is_over(self, enforce: Enforce) -> None:
        enforce(
            sockets=TWO_SOCKETS,
            own={"rate": "1/min", "events": ["message", "send"], "key": "connection", "algorithm": "gcra"},
            SOCKET_IDLE_TIMEOUT=60,
        )
        gc.collect()
        gc.disable()
        try:
            line = await Line().open()
            line.send("in", "over")
            await line.until(lambda: line.told("error"))
            ghost = weakref.ref(only())
            await line.close()
            line.say = line.task = None
            assert "django_throttle" not in line.scope
            await asyncio.sleep(0.01)
            assert ghost() is None, "no garbage collector is needed"
        finally:
            gc.enable()


class TestSlots:
    async def test_the_slot_is_free_as_soon_as_the_client_has_gone(self, enforce: Enforce) -> None:
        """However long the application takes to say goodbye to itself."""
        store = enforce(sockets=TWO_SOCKETS)
        go_on = asyncio.Event()

        class Slow(AsyncEcho):
            async def disconnect(self, code: int) -> None:
                await go_on.wait()

        communicator = await opened(Slow.as_asgi())
        assert held(store) == 1
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await becomes(lambda: not held(store))
        assert not communicator.future.done(), "the application has not ended yet"
        go_on.set()
        await communicator.wait()

    async def test_and_as_soon_as_the_application_closes(self, enforce: Enforce) -> None:
        store = enforce(sockets={**TWO_SOCKETS, "limit": 1})

        class Closing(AsyncEcho):
            async def receive(self, *_: Any, **__: Any) -> None:
                await self.close(4000)

        communicator = await opened(Closing.as_asgi())
        await communicator.send_to("x")
        assert (await communicator.receive_output())["code"] == 4000
        await becomes(lambda: not held(store))
        await (await opened()).disconnect()
        await communicator.disconnect()
        assert (await socket().connect())[0] is True
