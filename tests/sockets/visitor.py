"""One caller of a real server, who opens many sockets, well behaved and not."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
import time
from functools import cache
from uuid import uuid4

from django.conf import settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.sockets.servers import RULES, Server

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
        """How many sockets Redis counts."""
        decision = counter(self.server.redis.url).peek(f"tests.served.who:{self.name}")
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
    """How the server ends a socket, whatever it sends before that."""
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
    """End the TCP connection with RST and without a close frame."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
