"""Many clients at once, on several servers of several processes: the cap is exact, and nothing is left behind.

CHURN_SECONDS=30 in the environment has clients come and go for so long.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from tests.servers import RedisServer
from tests.sockets.servers import CAP, Server, serving
from tests.sockets.visitor import PATIENCE, Visitor, reset

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
