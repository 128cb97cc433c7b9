"""The ways of a frame and its echo, and of a socket that comes and goes: the modules of the package, and its calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_throttle.channels import ThrottleMiddleware
from django_throttle.stores import RedisStore
from tests.consumers import AsyncEcho
from tests.http.test_way import PACKAGE, Way
from tests.sockets.guarded import Line, Live, becomes, live_enforcer

enforce = pytest.fixture(live_enforcer)
CHAT = {"rate": "100000/h", "events": ["message"], "key": "ip"}
CAP = {"limit": 5, "algorithm": "concurrency", "events": ["connection"], "key": "ip"}
DOORS = {"middleware": ThrottleMiddleware, "consumer": AsyncEcho}
MAX_MODULES, MAX_CALLS, MAX_FIRST_CALLS = 10, 24, 60
MAX_VISIT_CALLS = {"middleware": 128, "consumer": 149}


@contextmanager
def noted() -> Iterator[Way]:
    """The calls of this thread; a coroutine is entered each time it is resumed."""
    calls: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            calls.append((code.co_filename.removeprefix(PACKAGE).removesuffix(".py"), code.co_qualname))

    sys.setprofile(note)
    try:
        yield Way(calls)
    finally:
        sys.setprofile(None)


async def way_of_a_frame(line: Line) -> Way:
    """Send a frame and wait for its echo."""
    sent = len(line.sent)
    with noted() as way:
        line.send("hello")
        while len(line.sent) == sent:  # noqa: ASYNC110 - each turn of the loop is on the way
            await asyncio.sleep(0)
    return way


async def way_of_a_visit(line: Line, store: RedisStore) -> Way:
    """Open a socket, which takes a slot, and close it; its release is sent after that."""
    with noted() as way:
        await line.open()
        await line.close()
    await becomes(lambda: not store.leases.unconfirmed())
    return way


def printed(name: str, way: Way) -> Way:
    print(*(f"{module:28}{function}" for module, function in way.calls), sep="\n")
    print(f"{name}: {len(way.modules)} modules, {len(way.calls)} calls")
    return way


@pytest.mark.parametrize("door", DOORS)
async def test_the_way_of_a_frame(enforce: Live, door: str) -> None:
    enforce(chat=CHAT)
    app = {"app": AsyncEcho.as_asgi()} if door == "consumer" else {}
    lines = [await Line(**app).open() for _ in range(5)]
    for _ in range(3):  # the process is warm: scripts are loaded, the pool is filled
        await way_of_a_frame(lines[0])
    # Now and then one buys for others.
    firsts, ways = [[await way_of_a_frame(each) for each in some] for some in (lines[1:], lines[1:2] * 50)]
    first = printed("the first frame of a socket", min(firsts, key=lambda way: len(way.calls)))
    warm = printed("a warm frame", min(ways, key=lambda way: len(way.calls)))
    assert len(warm.modules) <= MAX_MODULES
    assert len(warm.calls) <= MAX_CALLS
    assert len(first.calls) <= MAX_FIRST_CALLS
    for line in lines:
        await line.close()


@pytest.mark.parametrize("door", DOORS)
async def test_the_way_of_a_socket_that_comes_and_goes(enforce: Live, door: str) -> None:
    store = enforce(cap=CAP)
    app = {"app": AsyncEcho.as_asgi()} if door == "consumer" else {}
    ways = [await way_of_a_visit(Line(**app), store) for _ in range(20)]
    visit = printed("a visit", min(ways, key=lambda way: len(way.calls)))
    assert len(visit.calls) <= MAX_VISIT_CALLS[door]
