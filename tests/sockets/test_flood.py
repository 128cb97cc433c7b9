"""A44: a flood on one socket is decided where it comes in; nobody else notices, and Redis hardly does."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.connections.open_sockets import open_sockets
from django_throttle.recording import recorder
from tests.doors import Enforce, enforcer
from tests.servers import slack
from tests.sockets.guarded import Line, Live, live_enforcer, texts
from tests.sockets.test_prepaid import asked

enforce = pytest.fixture(enforcer)
enforce_live = pytest.fixture(live_enforcer)
FLOOD = 10_000


async def lag(stop: asyncio.Event) -> list[float]:
    """For how long this loop's own work kept somebody else waiting, each time, the least first."""
    found, last = [], time.thread_time()  # whatever else the machine does
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        found.append(now - last)
        last = now
    return sorted(found)


@pytest.mark.row("A44")
@pytest.mark.parametrize("kind", ["own", "shared", "both"])
async def test_ten_thousand_messages_in_a_second(
    enforce_live: Live, redis_server: Any, kind: str, figure: Callable[..., None]
) -> None:
    own = {"rate": "50/s", "events": ["message"], "key": "connection", "algorithm": "gcra"}
    shared = {"rate": "600/min", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}
    rules = {"own": {"own": own}, "shared": {"shared": shared}, "both": {"own": own, "shared": shared}}[kind]
    enforce_live(**rules, MAX_VIOLATIONS=0)
    line, other = await Line().open(), await Line(address="198.51.100.7").open()
    stop = asyncio.Event()
    watching = asyncio.ensure_future(lag(stop))
    with redis_server.client() as redis:
        before, began = asked(redis), time.monotonic()
        for n in range(100):
            line.send(*["x"] * (FLOOD // 100))
            if n % 10 == 0:
                other.send("hello")
            await asyncio.sleep(max(0.0, began + n / 100 - time.monotonic()))
        (flooded,) = [one for one in open_sockets.everyone() if "ip:203.0.113.9" in one.idents]
        await line.until(lambda: flooded.refused + len(texts(line)) == FLOOD)
        seconds, questions = time.monotonic() - began, asked(redis) - before
    stop.set()
    lags = await watching
    often = lags[len(lags) * 99 // 100]
    figure(f"questions to Redis of {FLOOD:,} messages", questions)
    figure("99 of 100 delays of the event loop", often * 1000, "ms")
    assert questions <= 2 * 10 * (1 + seconds), "ten a second for each address"
    assert often < slack(0.05)
    assert len(texts(other)) == 10
    assert len(line.told("error")) <= 5 + seconds
    for each in (line, other):
        await each.close()


@pytest.mark.row("A44")
async def test_it_is_closed_after_as_many_as_the_setting_says(enforce: Enforce) -> None:
    enforce(own={"rate": "50/s", "events": ["message"], "key": "connection", "algorithm": "gcra"}, MAX_VIOLATIONS=25)
    line = await Line().open()
    (flooding,) = open_sockets.everyone()
    line.send(*["x"] * FLOOD)
    await line.until(lambda: line.closed)
    assert line.closed["code"] == 4429
    assert flooding.refused == 25
    assert len(line.told("error")) == 1


async def test_what_an_open_socket_takes_of_memory(enforce: Enforce) -> None:
    """Beside the same sockets without a guard; in Redis it is what one lease takes."""
    enforce(
        sockets={"limit": 100_000, "algorithm": "concurrency", "events": ["connection"], "key": "ip"},
        own={"rate": "50/s", "events": ["message", "send"], "key": "connection", "algorithm": "gcra"},
    )
    sizes = []
    for guarded in (False, True):
        lines = [Line(address=f"10.0.{n // 250}.{n % 250}") for n in range(200)]
        for line in lines:
            line.app = line.app if guarded else line.echo
        gc.collect()
        tracemalloc.start()
        for line in lines:
            await line.open()
            line.send("hello")
        await lines[-1].until(lambda: all(texts(line) for line in lines))  # noqa: B023 - awaited here
        recorder.take()  # what waits to be counted is of the process
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0] / len(lines))
        tracemalloc.stop()
        for line in lines:
            await line.close()
    print(f"{sizes[0]:,.0f} bytes a socket, {sizes[1]:,.0f} with a guard: {sizes[1] - sizes[0]:,.0f} more")
    assert sizes[1] - sizes[0] < 6500
    assert sys.getsizeof(open_sockets) < 200
