"""On real servers: a short look, storms of handshakes, edits of overrides, and processes that are blocked or paused.

CHURN_SECONDS=30 in the environment has clients come and go for so long.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from tests.rulebook.test_rule_edits import OVERRIDE_WRITER, Process, environment, start
from tests.servers import RedisServer
from tests.sockets.servers import CAP, HASTE, RULES, Server, serving
from tests.sockets.visitor import PATIENCE, Visitor, code, echo, ends, reset

SETTINGS = {"RULES": {**RULES, "frames": {**RULES["frames"], "rate": "1/h"}}}


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["daphne", "uvicorn-sansio", "hypercorn", "granian"])
async def test_a_socket_is_counted_refused_and_given_back(serve: Callable[..., Any], name: str) -> None:
    (server,) = serve(name, settings=SETTINGS)
    visitor = Visitor(server)
    async with visitor.open() as socket:
        await echo(socket)
        assert visitor.held() == 1
        await socket.send("over")
        assert json.loads(await socket.recv())["code"] == "rate_limited"
    await visitor.holds(0)


EXACT = (CAP, CAP, {429})
SECONDS = float(os.environ.get("CHURN_SECONDS", "4"))
CLOSE_FRAME = b"\x88\x82\x00\x00\x00\x00\x03\xe8"  # 1000, masked with zeros
pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture(scope="module")
def two(redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[list[Server]]:
    """Two servers of two processes each, behind one Redis."""
    with serving(redis_server, tmp_path_factory.mktemp("storms")) as start:
        yield start("uvicorn-sansio", "granian", workers=2)


async def storm(servers: list[Server], clients: int) -> tuple[int, int, set[int]]:
    """So many handshakes of one caller, before any was decided: how many are open and counted, and other answers."""
    visitor, turns = Visitor(servers[0]), itertools.cycle(servers)
    attempts = await asyncio.gather(*(visitor.attempt(server=next(turns)) for _ in range(clients)))
    opened = [attempt for attempt in attempts if isinstance(attempt, ClientConnection)]
    found = len(opened), visitor.held(), {attempt for attempt in attempts if isinstance(attempt, int)}
    await asyncio.gather(*(connection.close() for connection in opened))
    await visitor.holds(0)
    return found


async def test_five_hundred_handshakes_of_one_user_fill_the_cap_exactly(two: list[Server]) -> None:
    assert await storm(two, 500) == EXACT


@pytest.mark.row("A43")
async def test_a43_clients_that_come_and_go(two: list[Server]) -> None:
    """Forty clients of twenty callers, each with one connection at a time, which they end in any way."""
    callers, chance = [Visitor(server) for server in two * 10], random.Random(1)
    ended: Counter[str] = Counter()

    async def visit(path: str) -> str:
        reader, writer = await chance.choice(callers).raw(path)
        how = chance.choice(("close", "fin", "reset", "early"))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            if how != "early" and b" 101 " not in await reader.readuntil(b"\r\n\r\n"):
                how = "refused"
            if how == "close":
                writer.write(CLOSE_FRAME)
                await reader.read(4)
        if how == "reset":
            reset(writer.transport)
        writer.transport.abort()
        return how

    async def come_and_go(path: str) -> None:
        while loop.time() < until:
            ended[await asyncio.wait_for(visit(path), PATIENCE)] += 1

    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS
    clients = {asyncio.create_task(come_and_go(path)) for path in ("chat", "middleware", "sync", "chat") * 10}
    while not all(client.done() for client in clients):
        assert 0 <= chance.choice(callers).held() <= CAP
        await asyncio.wait(clients, timeout=0.05)
    await asyncio.gather(*clients)
    assert set(ended) == {"close", "early", "fin", "refused", "reset"}
    for caller in callers:
        await caller.holds(0)
    for caller in callers:  # nor is anything taken that nobody waits for any more
        assert caller.held() == 0


__all__ = ["environment", "start"]  # fixtures

Serve = Callable[..., list[Server]]
pytestmark = pytest.mark.usefixtures("servers")
MINUTE = 60 / HASTE  # as long as a minute is for a process of default settings


async def test_an_override_that_ends_is_felt_in_every_process(
    serve: Serve, environment: dict[str, str], start: Callable[..., Process], monkeypatch: Any
) -> None:
    """As an edit is: sockets above the limit are told, and closed where the consumer says so."""
    monkeypatch.setenv("DATABASE", environment["DATABASE"])
    rules = {"sockets": {"limit": 4, "algorithm": "concurrency", "events": ["connection"], "key": "ip"}}
    pair = serve("uvicorn-sansio", "uvicorn-sansio", settings={"RULES": rules, "DATABASE_RULES": True})
    visitors = [Visitor(server) for server in pair]
    old = [await visitor.open(path) for visitor in visitors for path in ("chat", "strict")]
    writer = start(OVERRIDE_WRITER.replace('kind="user", value="1"', 'kind="ip", value="127.0.0.1"'))
    writer.say("8")
    _, until = map(float, writer.hear().split())
    newest = [await admitted(visitor, path) for visitor in visitors for path in ("chat", "strict")]
    assert time.time() < until
    for number, client in enumerate(newest):
        error = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
        assert time.time() >= until
        assert (error["type"], error["code"], error["limit"]) == ("error", "connection_limit", 4)
        if number % 2:
            assert code(await ends(client)) == 4430
        else:
            await echo(client)
    for client in old:
        await echo(client)
    for client in (*old, *newest):
        await client.close()


async def admitted(visitor: Visitor, path: str) -> ClientConnection:
    """A socket above the limit, once the server knows of the override."""
    async with asyncio.timeout(PATIENCE):
        while isinstance(opened := await visitor.attempt(path), int):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return opened


@pytest.fixture(scope="module")
def pair(redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[list[Server]]:
    """Two servers of one process each, which would sweep each other."""
    with serving(redis_server, tmp_path_factory.mktemp("processes")) as start:
        yield start("uvicorn-sansio", "uvicorn-sansio")


class TestProcesses:
    """What they hold open is counted for as long as they do."""

    async def test_a_blocked_event_loop_holds_what_it_holds(self, pair: list[Server]) -> None:
        """For a minute, at a tenth of the times: three times as long as it takes to bury a process."""
        blocked, witness = pair
        visitor = Visitor(blocked)
        connections = [await visitor.open(path) for path in ("chat", "sync", "middleware")]
        async with Visitor(witness).open():
            await connections[0].send(f"block {MINUTE}")
            answer, counted = asyncio.ensure_future(connections[0].recv()), set()
            while not answer.done():
                counted.add(visitor.held())
                await asyncio.wait({answer}, timeout=0.02)
            assert answer.result() == f"block {MINUTE}"
            assert counted == {3}
            for connection in connections:
                await echo(connection)
        assert visitor.held() == 3
        for connection in connections:
            await connection.close()
        await visitor.holds(0)

    @pytest.mark.row("F45")
    async def test_f45_a_process_that_was_paused_has_not_lost_its_sockets(
        self, pair: list[Server], figure: Callable[..., None]
    ) -> None:
        """Others take its slots meanwhile. Then more are open than the cap allows, all of them are counted, and none
        is added until there is room: what is open is never closed for having been paused.
        """
        paused, other = pair
        visitor = Visitor(paused)
        held = [await visitor.open() for _ in range(CAP)]
        async with Visitor(other).open():
            (pid,) = paused.pids()
            os.kill(pid, signal.SIGSTOP)
            try:
                figure("slots free for others after, by default,", await visitor.holds(0) * HASTE, "s")
                more = [await visitor.open(server=other) for _ in range(CAP)]
                assert visitor.held() == CAP
            finally:
                os.kill(pid, signal.SIGCONT)
            figure("counted again after", await visitor.holds(2 * CAP), "s")
            assert [await visitor.attempt(server=server) for server in pair] == [429, 429]
            for connection in held:
                await echo(connection)
                await connection.close()
            await visitor.holds(CAP)
            assert await visitor.attempt() == 429
            for connection in more:
                await connection.close()
            await visitor.holds(0)
