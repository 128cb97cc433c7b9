"""Two real servers behind one Redis: what happens in one process reaches the sockets of the other within a second."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.databases import new_database
from tests.servers import RedisServer
from tests.sockets.servers import CAP, RULES, Server
from tests.sockets.visitor import PATIENCE, Visitor, echo, until
from tests.web_server import ROOT

EVICTING = {**RULES, "sockets": {**RULES["sockets"], "at_limit": "evict_oldest"}}
Pair = tuple[Server, Server]
EDITS: dict[str, dict[str, Any]] = {"sockets": {"limit": 1}, "frames": {"rate": "1/h"}}


@pytest.fixture(scope="module")
def environment(redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[dict[str, str]]:
    """One database and one Redis for both servers and for whoever edits."""
    with new_database(tmp_path_factory.mktemp("two")) as database, pytest.MonkeyPatch.context() as patch:
        for name, value in {"DATABASE": database, "REDIS_URL": redis_server.url}.items():
            patch.setenv(name, value)
        manage("migrate", "--verbosity", "0")
        yield {**os.environ}


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testproject.manage", *arguments]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.editing", "RULES": json.dumps(EVICTING)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, text=True, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def pair(redis_server: RedisServer, environment: Any, tmp_path_factory: Any) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("servers")
    more: dict[str, Any] = {"RULES": EVICTING, "DATABASE_RULES": True}
    started = [Server("uvicorn-sansio", redis_server, folder, settings=more) for _ in range(2)]
    yield started[0].wait(), started[1].wait()
    for server in started:
        server.kill()


@pytest.fixture
def visitor(servers: None, pair: Pair) -> Visitor:
    return Visitor(pair[0])


async def goodbye(connection: ClientConnection) -> tuple[str, int]:
    """What the client is told last, and with which code it is closed."""
    told: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE):
        try:
            while True:
                told = json.loads(await connection.recv())
        except ConnectionClosed as closed:
            return told["code"], closed.rcvd.code if closed.rcvd else 1006


async def shut(*connections: ClientConnection) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))


async def test_many_at_once(pair: Pair, visitor: Visitor) -> None:
    for server in pair:
        await shut(await visitor.open(server=server))
    counts, stopped = list[int](), asyncio.Event()

    async def watch() -> None:
        while not stopped.is_set():
            counts.append(await asyncio.to_thread(visitor.held))

    watching = asyncio.create_task(watch())
    attempts = await asyncio.gather(*(visitor.attempt(server=pair[number % 2]) for number in range(100)))
    opened = [each for each in attempts if isinstance(each, ClientConnection)]
    assert {each for each in attempts if isinstance(each, int)} <= {429, 403}

    def still_open() -> list[ClientConnection]:
        return [each for each in opened if each.close_code is None]

    await until(lambda: len(still_open()) <= CAP)
    stopped.set()
    await watching
    assert max(counts) <= CAP
    await until(lambda: visitor.held() == len(still_open()) > 0)
    for connection in still_open():
        await echo(connection)
    await shut(*opened)
    await visitor.holds(0)


async def test_a_block_closes_them_everywhere(pair: Pair, visitor: Visitor) -> None:
    connections = [await visitor.open(server=server) for server in pair for _ in range(2)]
    await edit("throttle_override", "add", "ip", "127.0.0.1", "--block", "--reason", "a test")
    assert {*await asyncio.gather(*map(goodbye, connections))} == {("blocked", 4403)}
    await visitor.holds(0)
    assert await visitor.attempt() == 429
    await edit("throttle_override", "end", "1")
    async with asyncio.timeout(PATIENCE):
        while isinstance(again := await visitor.attempt(), int):  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.05)
    await shut(again)


async def test_an_edited_rate_and_a_lower_limit_reach_sockets_of_both(
    pair: Pair, visitor: Visitor, tmp_path: Path
) -> None:
    """The next frames are decided by the new rate; where newcomers close the oldest, the oldest are told."""
    connections = [await visitor.open(server=pair[number % 2]) for number in range(3)]
    for connection in connections:
        await echo(connection)
    edited = tmp_path / "rules.json"
    edited.write_text(json.dumps({name: {**EVICTING[name], **options} for name, options in EDITS.items()}))
    try:
        await edit("throttle_rules", "import", str(edited))
        warned = await asyncio.gather(
            *(error(connection, "connection_limit", sends=False) for connection in connections[:2])
        )
        refused = await asyncio.gather(*(error(connection, "rate_limited") for connection in connections))
        assert {(told["rule"], told["limit"]) for told in warned} == {("sockets", 1)}
        assert {(told["rule"], told["limit"]) for told in refused} == {("frames", 1)}
    finally:
        edited.write_text("{}")
        await edit("throttle_rules", "import", "--replace", str(edited))
    await shut(*connections)
    await visitor.holds(0)


async def reply(connection: ClientConnection) -> str:
    """What comes back of a frame; nothing comes of one that is dropped without a word."""
    await connection.send("x")
    try:
        return str(await asyncio.wait_for(connection.recv(), 0.15))
    except TimeoutError:
        return ""


async def error(connection: ClientConnection, code: str, *, sends: bool = True) -> dict[str, Any]:
    """What a client is told with this code while it goes on sending, or listens."""
    async with asyncio.timeout(PATIENCE):
        while True:
            told = await reply(connection) if sends else str(await connection.recv())
            if told.startswith("{") and json.loads(told)["code"] == code:
                found: dict[str, Any] = json.loads(told)
                return found


async def edit(*arguments: str) -> None:
    await asyncio.to_thread(manage, *arguments)
