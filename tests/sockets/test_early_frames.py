"""A frame that comes before the application has accepted: no slot is held for a socket that the server has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypercorn.protocol.ws_stream import WSStream

from django_throttle.sockets.server_stream import is_given_up
from tests.sockets.servers import CAP, Server
from tests.sockets.visitor import HEADERS, Visitor, echo

FRAME = b"\x81\x85\x00\x00\x00\x00hello"  # masked, as a client must


async def test_sockets_that_hypercorn_has_refused_hold_no_slot(serve: Callable[..., list[Server]]) -> None:
    (hypercorn,) = serve("hypercorn")
    for path in ("chat", "sync", "middleware"):
        visitor = Visitor(hypercorn)
        head = HEADERS.format(path=visitor.address(path), port=hypercorn.port, key="AAAAAAAAAAAAAAAAAAAAAA==").encode()
        for _ in range(2 * CAP):
            reader, writer = await asyncio.open_connection("127.0.0.1", hypercorn.port)
            writer.write(head + FRAME)
            assert b" 400 " in await reader.readline()
            writer.close()
        await visitor.holds(0)
        async with visitor.open(path) as connection:
            await echo(connection)
        await visitor.holds(0)


class Session:
    """Wraps ``send`` as Channels' middleware of sessions does."""

    def __init__(self, send: Any) -> None:
        self.real_send = send

    async def send(self, event: Any) -> None:
        await self.real_send(event)


def wrap(send: Any) -> Any:
    async def wrapped(event: Any) -> None:
        await send(event)

    return wrapped


@pytest.mark.parametrize("closed", [False, True])
def test_the_middleware_of_a_site_does_not_hide_it(closed: bool) -> None:
    stream: Any = WSStream.__new__(WSStream)
    stream.closed = closed
    send, session = stream.app_send, Session(stream.app_send).send
    for way in (send, session, partial(send), wrap(session), wrap(wrap(partial(send)))):
        assert is_given_up(way) is closed
    ways = [session]

    async def closure(event: Any) -> None:
        await ways[0](event)

    assert not is_given_up(print)
    assert not is_given_up(closure), "a list of functions is not looked through"
