"""Processes that do not behave: blocked, paused, killed. What they hold open is counted for as long as they do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.servers import RedisServer, slack, wait_until
from tests.sockets.servers import CAP, HASTE, USUAL, Server
from tests.sockets.visitor import Visitor, echo
from tests.web_server import ROOT

MINUTE = 60 / HASTE  # as long as a minute is for a process of default settings


@pytest.fixture(scope="module")
def pair(redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[list[Server]]:
    """Two servers of one process each, which would sweep each other."""
    folder = tmp_path_factory.mktemp("processes")
    started = [Server("uvicorn-sansio", redis_server, folder) for _ in range(2)]
    try:
        yield [server.wait() for server in started]
    finally:
        for server in started:
            server.kill()


@contextmanager
def refresher(redis: RedisServer, log: Path) -> Iterator[None]:
    """What an operator runs on each host, from its first pass on."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "testproject.manage", "refresh_connections"],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": redis.url},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "processes" in log.read_text(), timeout=slack(30), every=0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


async def test_a_blocked_event_loop_holds_what_it_holds(pair: list[Server]) -> None:
    """For a minute, at a tenth of the times: three times as long as it takes to bury a process."""
    blocked, witness = pair
    visitor = Visitor(blocked)
    connections = [await visitor.open(path) for path in ("chat", "sync", "middleware")]
    async with Visitor(witness).open():
        await connections[0].send(f"block {MINUTE}")
        counted, until = set(), time.monotonic() + MINUTE - 0.2
        while time.monotonic() < until:
            counted.add(visitor.held())
            await asyncio.sleep(0.02)
        began = time.monotonic()
        assert await asyncio.wait_for(connections[0].recv(), slack(30)) == f"block {MINUTE}"
        print(f"blocked for {MINUTE:.0f} s, and answered {time.monotonic() - began:.2f} s later; counted {counted}")
        assert counted == {3}
        for connection in connections:
            await echo(connection)
    assert visitor.held() == 3
    for connection in connections:
        await connection.close()
    assert await visitor.holds(0) <= slack(2)


@pytest.mark.row("F45")
async def test_f45_a_process_that_was_paused_has_not_lost_its_sockets(
    pair: list[Server], figure: Callable[..., None]
) -> None:
    """Others take its slots meanwhile. Then more are open than the cap allows, all of them are counted, and none is
    added until there is room: what is open is never closed for having been paused.
    """
    paused, other = pair
    visitor = Visitor(paused)
    held = [await visitor.open() for _ in range(CAP)]
    async with Visitor(other).open():
        (pid,) = paused.pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            took = await visitor.holds(0)
            figure("slots free for others after, by default,", took * HASTE, "s")
            more = [await visitor.open(server=other) for _ in range(CAP)]
            assert visitor.held() == CAP
        finally:
            os.kill(pid, signal.SIGCONT)
        took = await visitor.holds(2 * CAP)
        figure("counted again after", took, "s")
        for server in pair:
            with pytest.raises(InvalidStatus):
                await visitor.open(server=server)
        for connection in held:
            await echo(connection)
            await connection.close()
        assert await visitor.holds(CAP) <= slack(2)
        with pytest.raises(InvalidStatus):
            await visitor.open()
        for connection in more:
            await connection.close()
        assert await visitor.holds(0) <= slack(2)


@pytest.mark.row("F43")
async def test_f43_at_once_where_its_host_is_refreshed(
    redis_server: RedisServer, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """Twenty slots of a killed server, with the times as they are by default."""
    doomed = Server("uvicorn-sansio", redis_server, tmp_path, settings=USUAL)
    try:
        with refresher(redis_server, tmp_path / "refresher.log"):
            doomed.wait()
            visitors = [Visitor(doomed) for _ in range(20 // CAP)]
            connections = [await visitor.open() for visitor in visitors for _ in range(CAP)]
            assert [visitor.held() for visitor in visitors] == [CAP] * len(visitors)
            doomed.kill()
            took = max(await asyncio.gather(*(visitor.holds(0) for visitor in visitors)))
            for connection in connections:
                await connection.wait_closed()
    finally:
        doomed.kill()
    figure("slots back after, with refresh_connections,", took, "s")
    assert took <= slack(2)
