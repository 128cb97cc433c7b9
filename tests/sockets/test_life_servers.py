"""Goodbyes on real servers: the frame and the code arrive, while the application does nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.servers import RedisServer, slack
from tests.sockets.servers import Server
from tests.sockets.visitor import PATIENCE, Visitor

NAMES = ("daphne", "uvicorn-sansio", "hypercorn")
IDLE, OLDEST = 0.6, 1.5


@pytest.fixture(scope="module")
def servers(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("life")
    settings = {"SOCKET_IDLE_TIMEOUT": IDLE, "SOCKET_MAX_AGE": OLDEST}
    found = {name: Server(name, redis_server, folder, settings=settings) for name in NAMES}
    try:
        yield {name: server.wait() for name, server in found.items()}
    finally:
        for server in found.values():
            server.kill()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("word", "busy"), [("idle", False), ("too_old", True)])
async def test_the_frame_and_the_code_arrive(servers: dict[str, Server], name: str, word: str, busy: bool) -> None:
    visitor = Visitor(servers[name])
    async with visitor.open() as client:
        began, told = time.monotonic(), []
        talk = asyncio.ensure_future(_talk(client)) if busy else None
        with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012
            while True:
                told.append(await asyncio.wait_for(client.recv(), PATIENCE))
        seconds = time.monotonic() - began
        if talk is not None:
            talk.cancel()
    print(f"{name}: {word} after {seconds:.2f} s")
    last: Any = json.loads(told[-1])
    assert (last["type"], last["code"], last["retry_after"]) == ("error", word, 0)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4408
    least = OLDEST if busy else IDLE
    assert least / 2 <= seconds <= least + slack(1.0)
    await visitor.holds(0)


async def _talk(client: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await client.send("still here")
            await asyncio.sleep(0.1)
