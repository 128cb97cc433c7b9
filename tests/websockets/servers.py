"""Every ASGI server that sockets are tested on, as its users start it, and one caller who opens many sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from django.conf import settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from django_throttle.conf import Conf
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer, need_package, slack
from tests.web_server import WebServer

CAP: Final = 5
FRAMES: Final = 20
RULES: Final[dict[str, dict[str, Any]]] = {
    "sockets": {"limit": CAP, "algorithm": "concurrency", "events": ["connection"], "key": "tests.served.caller"},
    # So slow that a busy machine sends all frames before another is due.
    "frames": {"rate": f"{FRAMES}/h", "events": ["message"], "key": "tests.served.caller", "algorithm": "gcra"},
}
HASTE: Final = 10  # so many times as fast as by default
DEFAULT_SECONDS: Final = {"PROCESS_TTL": Conf().PROCESS_TTL}
HASTY: Final = {name: seconds / HASTE for name, seconds in DEFAULT_SECONDS.items()}
CALM: Final = {"DEADLINE": 5.0}  # where a busy machine is no excuse: nothing is about deadlines
# How often a server asks whether its client is still there, and how long it waits for the answer.
PING, PONG = 1, 2


class Kind(NamedTuple):
    """A server's package, its command for a port, the options that make it ping; ``denies`` by an HTTP response."""

    package: str
    command: Callable[[str], tuple[str, ...]]
    pings: tuple[str, ...] = ()
    denies: bool = True


def _uvicorn(implementation: str, package: str) -> Kind:
    fixed = ("uvicorn", "--host", "127.0.0.1", "--lifespan", "off", "--ws", implementation, "--port")
    return Kind(package, lambda port: (*fixed, port), ("--ws-ping-interval", f"{PING}", "--ws-ping-timeout", f"{PONG}"))


SERVERS: Final = {
    "daphne": Kind(
        "daphne",
        lambda port: ("daphne", "-b", "127.0.0.1", "-p", port),
        ("--ping-interval", f"{PING}", "--ping-timeout", f"{PONG}"),
        denies=False,
    ),
    "uvicorn-sansio": _uvicorn("websockets-sansio", "websockets"),
    "uvicorn-websockets": _uvicorn("websockets", "websockets"),
    "uvicorn-wsproto": _uvicorn("wsproto", "wsproto"),
    "hypercorn": Kind("hypercorn", lambda port: ("hypercorn", "-b", f"127.0.0.1:{port}")),
    "granian": Kind(
        "granian", lambda port: ("granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", port)
    ),
}


class Server(WebServer):
    """One of them, with all its processes; ``settings`` are more than those of ``tests.served``, or others."""

    def __init__(
        self,
        name: str,
        redis: RedisServer,
        folder: Path,
        *,
        workers: int = 1,
        pings: bool = False,
        settings: Mapping[str, Any] = {},
    ) -> None:
        super().__init__(name, folder, "tests.served is loaded", workers)
        self.kind, self.redis = SERVERS[name], redis
        need_package(self.kind.package)
        environment = {**os.environ, "REDIS_URL": redis.url, "RULES": json.dumps(RULES)}
        environment["SETTINGS"] = json.dumps({**CALM, **HASTY, **settings})
        options: tuple[str, ...] = ("--workers", str(workers)) if workers > 1 else ()
        options += self.kind.pings if pings else ()
        self.launch([*self.kind.command(str(self.port)), *options, "tests.served:application"], environment)

    def wait(self) -> Server:
        self.wait_until_it_serves()
        return self

    def pids(self) -> list[int]:
        lines = self.log.read_text().splitlines()
        return [int(line.rpartition(" ")[2]) for line in lines if self.loaded in line]

    async def terminate(self) -> None:
        self.signal()
        await asyncio.to_thread(self.process.wait, slack(20))


@contextmanager
def serving(redis: RedisServer, folder: Path) -> Iterator[Callable[..., list[Server]]]:
    """Start servers by their names, all with the same options, and kill them at the end."""
    started: list[Server] = []

    def start(*names: str, wait: bool = True, **options: Any) -> list[Server]:
        new = [Server(name, redis, folder, **options) for name in names]
        started.extend(new)
        return [server.wait() for server in new] if wait else new

    try:
        yield start
    finally:
        for server in started:
            server.kill()


PATIENCE = 30.0  # seconds: nothing that is awaited takes as long, however busy the machine
MANY = 1_000_000
HEADERS = (
    "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@cache
def counter(url: str) -> Limiter:
    """What Redis counts of the rule "sockets", also beyond its limit, which is no part of where it counts."""
    store = RedisStore(url, secret=settings.SECRET_KEY, deadline=5.0)
    return Limiter([Rule.from_options("sockets", {**RULES["sockets"], "limit": MANY})], store)


class Visitor:
    """A name of its own, under which the rules of ``tests.served`` count."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, uuid4().hex

    def address(self, path: str = "chat", wish: str = "") -> str:
        return f"/{path}?{self.name}" + (f"&{wish}" if wish else "")

    def open(self, path: str = "chat", wish: str = "", server: Server | None = None) -> connect:
        port = (server or self.server).port
        url = f"ws://127.0.0.1:{port}{self.address(path, wish)}"
        return connect(url, proxy=None, open_timeout=PATIENCE, close_timeout=2, ping_interval=None, max_queue=None)

    async def attempt(self, path: str = "chat", wish: str = "", server: Server | None = None) -> ClientConnection | int:
        """An open socket, or the status that stands in its place."""
        try:
            return await self.open(path, wish, server)
        except InvalidStatus as refused:
            return refused.response.status_code

    async def raw(self, path: str = "chat", wish: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection that has asked for a handshake and knows nothing else of WebSockets."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(HEADERS.format(path=self.address(path, wish), port=self.server.port, key=key).encode())
        return reader, writer

    async def mute(self, path: str = "chat") -> asyncio.StreamWriter:
        """A peer that is half open: it shook hands, reads nothing, answers nothing, and never says that it has gone."""
        reader, writer = await self.raw(path)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert b" 101 " in head, head
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        return writer

    def held(self) -> int:
        decision = counter(self.server.redis.url).peek(f"tests.served.caller:{self.name}")
        assert decision.remaining is not None
        assert not decision.degraded
        return MANY - decision.remaining

    async def holds(self, expected: int = 0) -> float:
        """Wait until Redis counts so many; the seconds that it took."""
        began = time.monotonic()
        while self.held() != expected:
            assert time.monotonic() - began < PATIENCE, f"still {self.held()} after {PATIENCE} s"
            await asyncio.sleep(0.01)
        return time.monotonic() - began


async def echo(connection: ClientConnection, text: str = "hello") -> None:
    await connection.send(text)
    assert await asyncio.wait_for(connection.recv(), PATIENCE) == text


async def ends(connection: ClientConnection) -> ConnectionClosed:
    async with asyncio.timeout(PATIENCE):
        try:
            while True:
                await connection.recv()
        except ConnectionClosed as closed:
            return closed


def code(closed: ConnectionClosed) -> int:
    """The code that the server sent; 1006 where it ended the connection without a close frame."""
    return closed.rcvd.code if closed.rcvd else 1006


def reset(transport: asyncio.WriteTransport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
