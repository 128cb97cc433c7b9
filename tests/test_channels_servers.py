"""The WebSocket doors behind real servers, with real clients: what a client sees, and when its slot comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from django_throttle.conf import Conf
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer, free_port, need_package, slack, wait_until
from tests.stalls import elapsed

CAP = 5
RULES: dict[str, dict[str, Any]] = {
    "sockets": {"limit": CAP, "algorithm": "concurrency", "events": ["connection"], "key": "tests.served.who"},
    "frames": {"rate": "3/min", "events": ["message"], "key": "tests.served.who", "algorithm": "gcra"},
}
ROOT = Path(__file__).parent.parent
# What a process does by default, ten times as fast.
HASTE = 10
USUAL = {"BEAT_INTERVAL": Conf().BEAT_INTERVAL, "PROCESS_TTL": Conf().PROCESS_TTL}
HASTY = {name: seconds / HASTE for name, seconds in USUAL.items()}
UVICORN = (sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--lifespan", "off", "--port")
SERVERS = {
    "uvicorn-sansio": ("websockets", lambda port: (*UVICORN, port, "--ws", "websockets-sansio")),
    "uvicorn-wsproto": ("wsproto", lambda port: (*UVICORN, port, "--ws", "wsproto")),
    "daphne": ("daphne", lambda port: (sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", port)),
}
SENDS_DENIALS = ("uvicorn-sansio", "uvicorn-wsproto")
PATHS = pytest.mark.parametrize("path", ["chat", "sync", "middleware"])


class Server:
    """One server; ``options`` are more arguments of its command, ``settings`` other than those of ``tests.served``."""

    def __init__(self, name: str, redis: RedisServer, folder: Path, *options: str, **settings: Any) -> None:
        package, command = SERVERS[name]
        need_package(package)
        self.name, self.redis, self.port = name, redis, free_port()
        environment = {**os.environ, "REDIS_URL": redis.url, "RULES": json.dumps(RULES)}
        environment["SETTINGS"] = json.dumps(settings)
        self.log = folder / f"{name}-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command(str(self.port)), *options, "tests.served:application"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._listens, timeout=slack(20))

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def has_two_workers(self) -> bool:
        return self.log.read_text().count("Started server process") == 2

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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
        wait_until(lambda: "processes" in log.read_text(), timeout=slack(20))
        yield
    finally:
        process.terminate()
        process.wait(30)


class Visitor:
    """One caller, who opens many sockets."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, uuid4().hex
        store = RedisStore(server.redis.url, secret=settings.SECRET_KEY, deadline=5.0)
        self.limiter = Limiter([Rule.from_options("sockets", RULES["sockets"])], store)

    def open(self, path: str = "chat") -> connect:
        address = f"ws://127.0.0.1:{self.server.port}/{path}?{self.name}"
        return connect(address, proxy=None, open_timeout=20, close_timeout=2)

    def held(self) -> int:
        """How many sockets Redis counts."""
        decision = self.limiter.peek(f"tests.served.who:{self.name}")
        assert decision.remaining is not None
        return CAP - decision.remaining

    def returned(self) -> bool:
        return self.held() == 0

    async def returns(self, seconds: float = 1.0) -> None:
        """All slots come back."""
        await asyncio.to_thread(wait_until, self.returned, timeout=slack(seconds))


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path_factory: Any) -> Iterator[Server]:
    running = Server(request.param, redis_server, tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.fixture
def visitor(server: Server) -> Visitor:
    return Visitor(server)


async def echo(connection: ClientConnection, text: str = "hello") -> None:
    await connection.send(text)
    assert await asyncio.wait_for(connection.recv(), 20) == text


class TestRefusals:
    @PATHS
    async def test_a_full_house_refuses_the_handshake(self, visitor: Visitor, path: str) -> None:
        connections = [await visitor.open(path) for _ in range(CAP)]
        with pytest.raises(InvalidStatus) as refused:
            await visitor.open(path)
        response = refused.value.response
        if visitor.server.name in SENDS_DENIALS:
            assert response.status_code == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert response.headers["Content-Type"] == "application/problem+json"
            assert json.loads(response.body)["violated-policies"] == ["sockets"]
        else:
            assert response.status_code == 403
        await echo(connections[0])
        for connection in connections:
            await connection.close()
        await visitor.returns()

    async def test_a_browser_is_told_in_a_frame(self, visitor: Visitor) -> None:
        connections = [await visitor.open("browser") for _ in range(CAP)]
        refused = await visitor.open("browser")
        told = json.loads(await refused.recv())
        assert (told["code"], told["rule"]) == ("connection_limit", "sockets")
        with pytest.raises(ConnectionClosed) as closed:
            await refused.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4430
        for connection in connections:
            await connection.close()
        await visitor.returns()

    async def test_fifty_handshakes_at_once_fill_the_cap_exactly(self, visitor: Visitor) -> None:
        async def attempt() -> ClientConnection | None:
            try:
                return await visitor.open()
            except InvalidStatus:
                return None

        opened = [each for each in await asyncio.gather(*(attempt() for _ in range(50))) if each]
        assert len(opened) == visitor.held() == CAP
        await asyncio.gather(*(connection.close() for connection in opened))
        await visitor.returns()

    @PATHS
    async def test_frames_over_the_rate_are_told_once_then_closed(self, visitor: Visitor, path: str) -> None:
        async with visitor.open(path) as connection:
            for _ in range(3):
                await echo(connection)
            for _ in range(10):
                await connection.send("over")
            told = json.loads(await connection.recv())
            assert (told["code"], told["rule"], told["limit"]) == ("rate_limited", "frames", 3)
            assert 19 < told["retry_after"] <= 20
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(connection.recv(), 20)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4429
            if visitor.server.name != "daphne":  # which drops the reason
                assert closed.value.rcvd.reason == "rate limited; retry_after=20"
        await visitor.returns()


class TestSlotsReturnAtOnce:
    """However a socket ends, short of the end of its server."""

    @PATHS
    async def test_after_a_clean_close(self, visitor: Visitor, path: str) -> None:
        async with visitor.open(path) as connection:
            await echo(connection)
            assert visitor.held() == 1
        await visitor.returns()

    @PATHS
    async def test_after_a_reset(self, visitor: Visitor, path: str) -> None:
        connection = await visitor.open(path)
        await echo(connection)
        reset(connection)
        await visitor.returns()

    @PATHS
    async def test_after_an_exception_in_the_consumer(self, visitor: Visitor, path: str) -> None:
        connection = await visitor.open(path)
        await connection.send("fail")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(connection.recv(), 20)
        await visitor.returns()

    async def test_after_sending_to_a_gone_client(self, visitor: Visitor) -> None:
        connection = await visitor.open()
        await connection.send("talk")
        await connection.recv()
        reset(connection)
        await visitor.returns(3.0)  # daphne and the consumer talk on for two seconds before they listen


class TestSlotsReturnInTime:
    """A server that holds twenty sockets dies by SIGKILL: nobody can give anything back."""

    async def test_when_it_was_silent_for_long(self, redis_server: RedisServer, tmp_path: Path) -> None:
        """Another process notices at its next beat that it was silent for PROCESS_TTL, and sweeps what it held."""
        doomed, witness = (Server("uvicorn-sansio", redis_server, tmp_path, **HASTY) for _ in range(2))
        try:
            async with Visitor(witness).open() as connection:
                await echo(connection)
                took, silence = await self.kill(doomed, within=slack(6.0))
                await echo(connection)
        finally:
            doomed.stop()
            witness.stop()
        bound = sum(USUAL.values())
        print(f"after kill -9: slots back after {took:.2f} s, by default {took * HASTE:.0f} s of {bound:.0f}")
        assert silence >= HASTY["PROCESS_TTL"], "nobody could know as early as that"
        assert took <= slack(bound / HASTE + 0.5)

    async def test_at_once_where_its_host_is_refreshed(self, redis_server: RedisServer, tmp_path: Path) -> None:
        doomed = Server("uvicorn-sansio", redis_server, tmp_path, **USUAL)
        try:
            with refresher(redis_server, tmp_path / "refresher.log"):
                took, _silence = await self.kill(doomed, within=slack(6.0))
        finally:
            doomed.stop()
        print(f"after kill -9, with refresh_connections: slots back after {took:.2f} s of 2")
        assert took <= slack(2.0)

    async def kill(self, doomed: Server, within: float) -> tuple[float, float]:
        """Fill the server, kill it; the seconds until Redis counts nothing that it held, and since its last beat."""
        visitors = [Visitor(doomed) for _ in range(20 // CAP)]
        connections = [await visitor.open() for visitor in visitors for _ in range(CAP)]
        assert len(connections) == 20
        assert [visitor.held() for visitor in visitors] == [CAP] * len(visitors)
        killed = time.monotonic()
        doomed.process.kill()
        doomed.process.wait()
        silent_since = last_beat(doomed)
        for visitor in visitors:
            await asyncio.to_thread(wait_until, visitor.returned, timeout=within)
        return elapsed(killed), now(doomed.redis) - silent_since


def last_beat(server: Server) -> float:
    """When a server's process has last said that it lives, by the clock of Redis."""
    with server.redis.client() as client:
        found = {json.loads(meta)["pid"]: uid for uid, meta in client.hgetall("dt:{p}:meta").items()}
        return float(client.zscore("dt:{p}:live", found[server.process.pid])) / 1_000_000


def now(redis: RedisServer) -> float:
    with redis.client() as client:
        seconds, micros = client.time()
    return float(seconds + micros / 1_000_000)


class TestStorm:
    @pytest.mark.parametrize("deadline", [Conf().DEADLINE, 5.0])
    async def test_three_hundred_handshakes_of_one_address_fill_the_cap_exactly(
        self, deadline: float, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """Two workers, and 300 clients before anyone was decided."""
        server = Server("uvicorn-sansio", redis_server, tmp_path, "--workers", "2", DEADLINE=deadline)
        try:
            visitor = Visitor(server)
            await asyncio.to_thread(wait_until, server.has_two_workers, timeout=slack(20))
            began = time.monotonic()
            attempts = await asyncio.gather(*(handshake(visitor) for _ in range(300)))
            took = time.monotonic() - began
            opened = [each for each in attempts if isinstance(each, ClientConnection)]
            print(f"300 handshakes in {took:.2f} s: {len(opened)} open")
            assert len(opened) == visitor.held() == CAP
            assert {each for each in attempts if isinstance(each, int)} == {429}
            await asyncio.gather(*(connection.close() for connection in opened))
            await visitor.returns()
        finally:
            server.stop()


async def handshake(visitor: Visitor) -> ClientConnection | int:
    """An open socket, or the status that stands in its place."""
    try:
        return await visitor.open()
    except InvalidStatus as refused:
        return refused.response.status_code


def reset(connection: ClientConnection) -> None:
    """End the TCP connection with RST and without a close frame."""
    transport = connection.transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
