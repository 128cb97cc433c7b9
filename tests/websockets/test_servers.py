"""On real servers: a short look, a storm of handshakes, and a process that is paused."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import RedisServer
from tests.websockets.servers import CAP, HASTE, RULES, Server, Visitor, echo, serving

SETTINGS = {"RULES": {**RULES, "frames": {**RULES["frames"], "rate": "1/h"}}}
pytestmark = pytest.mark.usefixtures("servers")


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


@pytest.fixture(scope="module")
def pair(redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[list[Server]]:
    with serving(redis_server, tmp_path_factory.mktemp("pair")) as start:
        yield [*start("uvicorn-sansio"), *start("granian", workers=2)]


@pytest.mark.row("F45")
async def test_f45_a_process_that_was_paused_has_not_lost_its_sockets(pair: list[Server], figure: Any) -> None:
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
