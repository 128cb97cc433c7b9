"""A frame that comes before the application has accepted: no slot is held for a socket that the server has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypercorn.protocol.ws_stream import WSStream

from django_throttle.sockets.server_stream import is_given_up
from tests.servers import RedisServer
from tests.sockets.servers import CAP, SERVERS, Server, serving
from tests.sockets.visitor import HEADERS, Visitor

FRAME = b"\x81\x85\x00\x00\x00\x00hello"  # masked, as a client must


@pytest.fixture(scope="module")
def hypercorn(tmp_path_factory: Any) -> Iterator[Server]:
    with RedisServer() as redis, serving(redis, Path(tmp_path_factory.mktemp("early"))) as start:
        (server,) = start("hypercorn")
        yield server


@pytest.mark.parametrize("path", ["chat", "sync", "middleware"])
async def test_sockets_that_hypercorn_has_refused_hold_no_slot(hypercorn: Server, path: str) -> None:
    assert "hypercorn" in SERVERS
    visitor = Visitor(hypercorn)
    head = HEADERS.format(path=visitor.address(path), port=hypercorn.port, key="AAAAAAAAAAAAAAAAAAAAAA==").encode()
    for _ in range(2 * CAP):
        reader, writer = await asyncio.open_connection("127.0.0.1", hypercorn.port)
        writer.write(head + FRAME)
        assert b" 400 " in await reader.readline()
        writer.close()
    await visitor.holds(0)
    async with visitor.open(path) as connection:
        await connection.send("hello")
        assert await connection.recv() == "hello"
    await visitor.holds(0)


class Session:
    """Wraps ``send`` as Channels' middleware of sessions does."""

    def __init__(self, send: Any) -> None:
        self.real_send = send

    async def send(self, event: Any) -> None:
        await self.real_send(event)


def test_the_site_s_middleware_does_not_hide_it() -> None:
    stream: Any = WSStream.__new__(WSStream)
    sends = [stream.app_send, Session(stream.app_send).send, partial(stream.app_send)]

    async def closure(event: Any) -> None:
        await sends[1](event)

    def wrap(send: Any) -> Any:
        async def wrapped(event: Any) -> None:
            await send(event)

        return wrapped

    for send in (*sends, wrap(sends[1]), wrap(wrap(partial(sends[0])))):
        for closed in (False, True):
            stream.closed = closed
            assert is_given_up(send) is closed
    assert not is_given_up(print)
    assert not is_given_up(closure), "a list of functions is not looked through"
