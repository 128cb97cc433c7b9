"""What may wait for a database is done on a thread that nobody else waits for."""

import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import rulebook, runtime
from django_throttle.core import Rule
from django_throttle.rulebook import Snapshot
from django_throttle.runtime import in_thread, is_on_event_loop
from tests.websockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(live_enforcer)
asked: set[int] = set()


def slowly(scope: Any) -> str:
    if is_on_event_loop():
        raise SynchronousOnlyOperation
    asked.add(threading.get_ident())
    return "somebody"


async def not_to_be_waited_for() -> set[int]:
    """The thread of the event loop, and the one that every synchronous consumer runs on."""
    return {threading.get_ident(), await sync_to_async(threading.get_ident)()}


@pytest.mark.parametrize("fails", [False, True])
async def test_it_is_a_thread_of_its_own_which_closes_its_connections(monkeypatch: Any, fails: bool) -> None:
    done: list[tuple[str, int]] = []

    def work(name: str, *, number: int) -> int:
        done.append((name, threading.get_ident()))
        return 1 // (0 if fails else number)

    monkeypatch.setattr(runtime, "close_old_connections", lambda: done.append(("close", threading.get_ident())))
    try:
        assert await in_thread(work, "work", number=1) == 1
    except ZeroDivisionError:
        assert fails
    assert [name for name, _ in done] == ["close", "work", "close"]
    (thread,) = {thread for _, thread in done}
    assert thread not in await not_to_be_waited_for()


async def test_no_socket_asks_on_the_loop_or_on_the_thread_of_consumers(enforce: Live) -> None:
    key = {"key": "tests.test_event_loop.slowly", "scopes": ["chat"]}
    sockets = {"limit": 9, "algorithm": "concurrency", "events": ["connection"], **key}
    enforce(chat={"rate": "100/h", "events": ["message"], **key}, sockets=sockets)
    line = Line()

    async def echo() -> None:
        line.send("hello")
        await line.until(lambda: texts(line))

    async def lower_the_limit() -> None:
        before = rulebook.pin(Snapshot([Rule.from_options("sockets", {**sockets, "limit": 8})]))
        try:
            await becomes(lambda: asked)
        finally:
            rulebook.pin(before)

    for step in (line.open, echo, lower_the_limit):
        asked.clear()
        await step()
        assert asked, "it asks"
        assert not asked & await not_to_be_waited_for()
    await line.close()
