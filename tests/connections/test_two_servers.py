"""Two real servers behind one Redis: what happens in one process reaches the sockets of the other within a second."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from django_throttle.connections.overview import Overview, look
from django_throttle.core import Rule
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.databases import new_database
from tests.servers import RedisServer, slack, wait_until
from tests.sockets.servers import CAP, RULES, Server
from tests.sockets.visitor import PATIENCE, Visitor, echo, until
from tests.web_server import ROOT

EVICTING = {**RULES, "sockets": {**RULES["sockets"], "at_limit": "evict_oldest"}}
EDITS: dict[str, dict[str, Any]] = {"sockets": {"limit": 1}, "frames": {"rate": "1/h"}}
WITHIN = slack(1.0)


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
def servers(redis_server: RedisServer, environment: Any, tmp_path_factory: Any) -> Iterator[tuple[Server, Server]]:
    folder: Path = tmp_path_factory.mktemp("servers")
    more: dict[str, Any] = {"RULES": EVICTING, "DATABASE_RULES": True}
    started = [Server("uvicorn-sansio", redis_server, folder, settings=more) for _ in range(2)]
    yield started[0].wait(), started[1].wait()
    for server in started:
        server.kill()


@pytest.fixture
def visitor(servers: tuple[Server, Server]) -> Visitor:
    return Visitor(servers[0])


@pytest.fixture
def store(redis_server: RedisServer) -> RedisStore:
    """A third process, in which nobody holds anything."""
    return RedisStore(redis_server.url, secret=settings.SECRET_KEY, deadline=5.0)


async def told_goodbye(connection: ClientConnection) -> tuple[dict[str, Any], int, float]:
    """What the client is told last, with which code it is closed, and when."""
    told: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE):
        try:
            while True:
                told = json.loads(await connection.recv())
        except ConnectionClosed as closed:
            return told, closed.rcvd.code if closed.rcvd else 1006, time.monotonic()


async def shut(*connections: ClientConnection) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))


class TestEviction:
    async def test_a_newcomer_on_one_server_closes_the_oldest_of_both_on_the_other(
        self, servers: tuple[Server, Server], visitor: Visitor
    ) -> None:
        oldest, *others = [await visitor.open(server=servers[number % 2]) for number in range(CAP)]
        began = time.monotonic()
        newcomer = await visitor.open(server=servers[1])
        let_in = time.monotonic() - began
        told, code, at = await told_goodbye(oldest)
        print(f"let in after {let_in:.3f} s, the oldest was closed after {at - began:.3f} s")
        assert (told["code"], told["rule"], told["limit"], code) == ("evicted", "sockets", CAP, 4430)
        assert at - began < WITHIN
        for connection in (*others, newcomer):
            await echo(connection)
        assert visitor.held() == CAP
        await shut(*others, newcomer)
        await visitor.holds(0)

    async def test_two_hundred_at_once(self, servers: tuple[Server, Server], visitor: Visitor) -> None:
        for server in servers:
            await shut(await visitor.open(server=server))
        counts: list[int] = []
        stopped = asyncio.Event()

        async def watch() -> None:
            while not stopped.is_set():
                counts.append(await asyncio.to_thread(visitor.held))

        watching = asyncio.create_task(watch())
        attempts = await asyncio.gather(*(visitor.attempt(server=servers[number % 2]) for number in range(200)))
        began = time.monotonic()
        opened = [each for each in attempts if isinstance(each, ClientConnection)]
        assert {each for each in attempts if isinstance(each, int)} <= {429, 403}

        def open_still() -> list[ClientConnection]:
            return [each for each in opened if each.close_code is None]

        await until(lambda: len(open_still()) <= CAP)
        took = time.monotonic() - began
        stopped.set()
        await watching
        print(
            f"{len(opened)} of 200 let in; {len(open_still())} open {took:.2f} s after the last; {max(counts)} counted"
        )
        assert took < WITHIN
        assert max(counts) <= CAP
        await until(lambda: visitor.held() == len(open_still()))
        assert len(open_still()) > 0
        for connection in open_still():
            await echo(connection)
        await shut(*opened)
        await visitor.holds(0)


class TestOperator:
    async def test_what_is_open_is_seen_from_elsewhere_and_closed(
        self, servers: tuple[Server, Server], visitor: Visitor, store: RedisStore
    ) -> None:
        here, there = await visitor.open(), await visitor.open(server=servers[1])
        await echo(there)
        began = time.monotonic()
        found: list[Overview] = []

        def is_seen() -> bool:
            found.append(look(store, visitor.name))
            return found[-1].open == 2

        await asyncio.to_thread(wait_until, is_seen, every=0.05)
        print(f"seen after {time.monotonic() - began:.2f} s")
        overview = found[-1]
        (ident,) = [one for one in overview.idents if visitor.name in one.shown]
        assert (ident.open, ident.processes) == (2, 2)
        pids = {server.pids()[0] for server in servers}
        assert {one.pid for one in overview.connections} == pids <= {one.pid for one in overview.processes}
        one = next(one for one in overview.connections if one.received)
        assert one.address == "127.0.0.1" and one.pid == servers[1].pids()[0]
        began = time.monotonic()
        store.control.give((ControlMessage(CLOSE, uid=one.uid, socket=one.id, why=CLOSED),))
        told, code, at = await told_goodbye(there)
        print(f"closed after {at - began:.2f} s")
        assert (told["code"], code) == ("closed", 4410)
        assert at - began < WITHIN
        await echo(here)
        await shut(here)

    async def test_a_block_closes_them_everywhere(
        self, servers: tuple[Server, Server], visitor: Visitor, redis_server: RedisServer
    ) -> None:
        connections = [await visitor.open(server=server) for server in servers for _ in range(2)]
        began = await commit(
            redis_server, "throttle_override", "add", "ip", "127.0.0.1", "--block", "--reason", "a test"
        )
        goodbyes = await asyncio.gather(*map(told_goodbye, connections))
        slowest = max(at for _, _, at in goodbyes) - began
        print(f"the last was closed {slowest:.2f} s after the commit")
        assert {(told["code"], code) for told, code, _ in goodbyes} == {("blocked", 4403)}
        assert slowest < WITHIN
        await visitor.holds(0)
        assert await visitor.attempt() == 429
        await commit(redis_server, "throttle_override", "end", "1")
        async with asyncio.timeout(PATIENCE):
            while isinstance(again := await visitor.attempt(), int):  # noqa: ASYNC110 - nobody says when
                await asyncio.sleep(0.05)
        await shut(again)

    async def test_a_reset_reaches_an_open_socket(
        self, servers: tuple[Server, Server], visitor: Visitor, store: RedisStore
    ) -> None:
        rule = Rule.from_options("frames", RULES["frames"])
        connection = await visitor.open()
        while (told := await reply(connection)) == "x":
            pass
        assert json.loads(told)["code"] == "rate_limited"
        assert await asyncio.to_thread(Limiter([rule], store).reset, f"tests.served.who:{visitor.name}") == 1
        began = time.monotonic()
        while await reply(connection) != "x":
            assert time.monotonic() - began < WITHIN
        print(f"heard of after {time.monotonic() - began:.2f} s")
        await shut(connection)


async def reply(connection: ClientConnection) -> str:
    """What comes back of a frame; nothing comes of one that is dropped without a word."""
    await connection.send("x")
    try:
        return str(await asyncio.wait_for(connection.recv(), 0.15))
    except TimeoutError:
        return ""


class TestEdits:
    async def test_an_edited_rate_and_a_lower_limit_reach_sockets_of_both(
        self, servers: tuple[Server, Server], visitor: Visitor, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """The next frames are decided by the new rate; where newcomers close the oldest, the oldest are told."""
        connections = [await visitor.open(server=servers[number % 2]) for number in range(3)]
        for connection in connections:
            await echo(connection)
        edited = tmp_path / "rules.json"
        edited.write_text(json.dumps({name: {**EVICTING[name], **options} for name, options in EDITS.items()}))
        try:
            began = await commit(redis_server, "throttle_rules", "import", str(edited))
            warned = await asyncio.gather(*(error(connection, "connection_limit") for connection in connections[:2]))
            refused = await asyncio.gather(*(error(connection, "rate_limited") for connection in connections))
            print(f"warned {max(at for _, at in warned) - began:.2f} s after the commit")
            assert {(told["rule"], told["limit"]) for told, _ in warned} == {("sockets", 1)}
            assert {(told["rule"], told["limit"]) for told, _ in refused} == {("frames", 1)}
            assert max(at for _, at in (*warned, *refused)) - began < WITHIN
        finally:
            edited.write_text("{}")
            await commit(redis_server, "throttle_rules", "import", "--replace", str(edited))
        await shut(*connections)
        await visitor.holds(0)


async def error(connection: ClientConnection, code: str) -> tuple[dict[str, Any], float]:
    """What a client is told with this code while it goes on sending, and when."""
    async with asyncio.timeout(PATIENCE):
        while True:
            told = await reply(connection)
            if told.startswith("{") and json.loads(told)["code"] == code:
                return json.loads(told), time.monotonic()


async def commit(redis: RedisServer, *arguments: str) -> float:
    """Edit rules or overrides; returns when its commit was over, as the version of the rules tells."""
    with redis.client() as client:
        before = client.get("dt:{p}:rules")
        running = asyncio.create_task(asyncio.to_thread(manage, *arguments))
        await until(lambda: client.get("dt:{p}:rules") != before, every=0.002)
        began = time.monotonic()
        await running
    return began
