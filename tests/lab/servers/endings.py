"""The ways in which a socket ends. Each is done on a real server, and returns what the client saw of it, as text."""

import asyncio
import json
import re
from contextlib import suppress

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from tests.websockets.servers import CAP, FRAMES, PATIENCE, Visitor, code, echo, ends, reset

GIANT = 100 * 1024 * 1024
CHUNK = bytes(256 * 1024)


async def opened(visitor: Visitor, path: str) -> ClientConnection:
    connection = await visitor.open(path)
    await echo(connection)
    assert visitor.held() == 1
    return connection


async def refused(visitor: Visitor, path: str) -> str:
    inside = [await visitor.open(path) for _ in range(CAP)]
    with pytest.raises(InvalidStatus) as error:
        await visitor.open(path)
    response = error.value.response
    if visitor.server.kind.denies:
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["Content-Type"] == "application/problem+json"
        assert json.loads(response.body)["violated-policies"] == ["sockets"]
    assert visitor.held() == CAP
    await echo(inside[0])
    for connection in inside:
        await connection.close()
    return str(response.status_code)


async def refused_in_a_frame(visitor: Visitor, path: str) -> str:
    inside = [await visitor.open("browser") for _ in range(CAP)]
    connection = await visitor.open("browser")
    told = json.loads(await connection.recv())
    assert (told["code"], told["rule"]) == ("connection_limit", "sockets")
    closed = await ends(connection)
    assert visitor.held() == CAP
    for connection in inside:
        await connection.close()
    return str(code(closed))


async def denied(visitor: Visitor, path: str) -> str:
    """The consumer itself does not want this client, who has a slot by then."""
    return str(await visitor.attempt(path, "deny"))


async def early(visitor: Visitor, path: str) -> str:
    _, writer = await visitor.raw(path, "slow")
    await visitor.holds(1)
    reset(writer.transport)
    return ""


async def flooded(visitor: Visitor, path: str) -> str:
    connection = await opened(visitor, path)
    for _ in range(FRAMES - 1):
        await echo(connection)
    for _ in range(10):
        await connection.send("over")
    told = json.loads(await connection.recv())
    assert (told["code"], told["rule"], told["limit"]) == ("rate_limited", "frames", FRAMES)
    assert 0 < told["retry_after"] <= 3600 / FRAMES
    closed = await ends(connection)
    assert closed.rcvd is not None
    if visitor.server.name != "daphne":  # which drops the reason
        (seconds,) = re.fullmatch(r"rate limited; retry_after=(\d+)", closed.rcvd.reason).groups()
        assert 1 <= int(seconds) <= 3600 / FRAMES
    return str(code(closed))


async def closed_by_the_consumer(visitor: Visitor, path: str) -> str:
    connection = await opened(visitor, path)
    await connection.send("close")
    return str(code(await ends(connection)))


async def clean(visitor: Visitor, path: str) -> str:
    await (await opened(visitor, path)).close()
    return ""


async def without_a_close_frame(visitor: Visitor, path: str) -> str:
    (await opened(visitor, path)).transport.abort()
    return ""


async def by_reset(visitor: Visitor, path: str) -> str:
    reset((await opened(visitor, path)).transport)
    return ""


async def exception(visitor: Visitor, path: str) -> str:
    connection = await opened(visitor, path)
    await connection.send("fail")
    return str(code(await ends(connection)))


async def gone(visitor: Visitor, path: str) -> str:
    connection = await opened(visitor, path)
    await connection.send("talk")
    await connection.recv()
    reset(connection.transport)
    return ""


async def giant(visitor: Visitor, path: str) -> str:
    reader, writer = await visitor.raw(path)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    answer, sent = asyncio.create_task(reader.read(1)), 0
    writer.write(b"\x82\xff" + GIANT.to_bytes(8, "big") + bytes(4))
    with suppress(ConnectionError):
        while sent < GIANT and not answer.done():
            await asyncio.wait({answer}, timeout=0.001)
            await writer.drain()
            writer.write(CHUNK)
            sent += len(CHUNK)
    assert sent < GIANT, "it took all of it"
    writer.transport.abort()
    await asyncio.gather(answer, return_exceptions=True)
    return ""
