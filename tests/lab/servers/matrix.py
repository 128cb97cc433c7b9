"""The table of docs/reference/servers.rst: how long it takes on every server until slots of an ended socket are back.

``python -m tests.lab.servers.matrix`` writes it anew; ``tests/websockets/test_matrix.py`` holds every cell to the bound
that is stated.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.servers import endings
from tests.pages import DOCS, simple_table
from tests.servers import RedisServer
from tests.websockets.servers import CAP, DEFAULT_SECONDS, HASTE, PING, PONG, SERVERS, Server, Visitor, ends, serving

PRINTED = DOCS / "servers.inc"
SECONDS = re.compile(r"[\d.]+ s")
PATHS = ("chat", "sync", "middleware")
TITLES = {
    "daphne": "daphne",
    "uvicorn-sansio": "uvicorn, websockets-sansio",
    "uvicorn-websockets": "uvicorn, websockets",
    "uvicorn-wsproto": "uvicorn, wsproto",
    "hypercorn": "hypercorn",
    "granian": "granian",
}
# What ends a half-open peer on servers that do not ping.
IDLE = {"SOCKET_IDLE_TIMEOUT": float(PING + PONG)}
NOTE = r" \*"


class Row(NamedTuple):
    id: str
    words: str
    within: float
    ending: Callable[[Visitor, str], Awaitable[str]] | None = None


QUICK = (
    Row("refused", "The handshake is refused: the cap is reached", 1, endings.refused),
    Row("frame", "The same, with an error frame", 1, endings.refused_in_a_frame),
    Row("denied", "The consumer denies the handshake", 1, endings.denied),
    Row("early", "The client goes before a slow consumer accepts", 2, endings.early),
    Row("flooded", "Too many messages: closed here", 1, endings.flooded),
    Row("closed", "The consumer closes", 1, endings.closed_by_the_consumer),
    Row("clean", "The client closes", 1, endings.clean),
    Row("fin", "The client goes without a close frame", 1, endings.without_a_close_frame),
    Row("reset", "The connection is reset", 1, endings.by_reset),
    Row("exception", "The consumer raises", 1, endings.exception),
    Row("gone", "The client goes while the consumer sends", 2, endings.gone),
    Row("giant", "A frame of 100 MB", 1, endings.giant),
)
HALF_OPEN = Row("f46-half-open", "The client has vanished without a close", PING + PONG + 1)
TERMINATED = Row("f44-sigterm", "SIGTERM; from the end of the process", 1)
KILLED = Row("f43-sigkill", "SIGKILL", 1.25 * DEFAULT_SECONDS["PROCESS_TTL"])  # which others notice within a beat
ROWS = (*QUICK, HALF_OPEN, TERMINATED, KILLED)
# A server's own: daphne looks every two seconds, uvicorn's older implementation waits for the client to close as well.
LONGER = {
    ("giant", "uvicorn-websockets"): 11.0,
    (HALF_OPEN.id, "uvicorn-websockets"): HALF_OPEN.within + 10,
    (HALF_OPEN.id, "daphne"): HALF_OPEN.within + 4,
}


class Cell(NamedTuple):
    seen: str = ""
    seconds: float = 0.0
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.error:
            return "failed"
        tenths = ceil(max(self.seconds, 0.001) * 10) / 10
        return f"{self.seen}, {tenths:.{0 if tenths >= 10 else 1}f} s".removeprefix(", ")


Measure = Callable[[Server], Coroutine[Any, Any, Cell]]


class Matrix:
    def __init__(self, redis: RedisServer, folder: Path, names: Iterable[str] = SERVERS) -> None:
        self.redis, self.folder, self.names = redis, folder, tuple(names)
        self.cells: dict[tuple[str, str], Cell] = {}

    async def measure(self) -> None:
        """Two servers of each kind: one lives until it is told to end, the other is killed meanwhile."""
        with self._serving() as living, self._serving(pings=True) as doomed:
            await asyncio.gather(self._end_sockets(living), self._end_servers(doomed))
            await self._fill(TERMINATED, terminated, living)

    async def _end_sockets(self, servers: list[Server]) -> None:
        for row in QUICK:
            await self._fill(row, partial(ended, row), servers)

    async def _end_servers(self, servers: list[Server]) -> None:
        await self._fill(HALF_OPEN, half_open, servers)
        await self._fill(KILLED, killed, servers)

    async def _fill(self, row: Row, measure: Measure, servers: list[Server]) -> None:
        found = await asyncio.gather(*map(measure, servers), return_exceptions=True)
        for server, cell in zip(servers, found, strict=True):
            self.cells[row.id, server.name] = Cell(error=cell) if isinstance(cell, BaseException) else cell

    @contextmanager
    def _serving(self, *, pings: bool = False) -> Iterator[list[Server]]:
        with serving(self.redis, self.folder) as start:
            names = {name: kind for name, kind in SERVERS.items() if name in self.names}
            servers = [
                start(name, wait=False, pings=pings, settings=IDLE if pings and not kind.pings else {})
                for name, kind in names.items()
            ]
            yield [server.wait() for (server,) in servers]

    def within(self, row: Row, name: str) -> float:
        return LONGER.get((row.id, name), row.within)

    def table(self) -> str:
        lines = [("What happens", "At most", *(TITLES[name] for name in self.names))]
        for row in ROWS:
            cells = (f"{self.cells[row.id, name]}{NOTE * ((row.id, name) in LONGER)}" for name in self.names)
            lines.append((row.words, f"{row.within:g} s", *cells))
        return simple_table(lines)


async def ended(row: Row, server: Server) -> Cell:
    assert row.ending is not None
    visitors = [Visitor(server) for _ in PATHS]
    seen = set(await asyncio.gather(*map(row.ending, visitors, PATHS)))
    assert len(seen) == 1, seen
    return Cell(seen.pop(), await all_back(visitors))


async def half_open(server: Server) -> Cell:
    """The server pings; where it does not, the socket is idle for too long."""
    visitors = [Visitor(server) for _ in PATHS]
    writers = await asyncio.gather(*map(Visitor.mute, visitors, PATHS))
    began = time.monotonic()
    await asyncio.gather(*(visitor.holds(1) for visitor in visitors))
    await all_back(visitors)
    took = time.monotonic() - began
    for writer in writers:
        writer.transport.abort()
    return Cell(seconds=took)


async def terminated(server: Server) -> Cell:
    visitors = [Visitor(server) for _ in PATHS]
    connections = await asyncio.gather(*map(endings.opened, visitors, PATHS))
    watching = [asyncio.create_task(ends(connection)) for connection in connections]
    ending = asyncio.create_task(server.terminate())
    if server.name == "hypercorn" and sys.version_info >= (3, 12, 1):
        # There it waits for its clients for as long as they stay: github.com/pgjones/hypercorn/issues/308
        await asyncio.sleep(0)  # the signal is sent
        await asyncio.gather(*(connection.close() for connection in connections))
    await ending
    cell = Cell(seconds=await all_back(visitors))
    await asyncio.gather(*watching)
    return cell


async def killed(server: Server) -> Cell:
    """SIGKILL to a server with fifty sockets, at a tenth of the default times; the figure is in default ones."""
    visitors = [Visitor(server) for _ in range(50 // CAP)]
    connections = await asyncio.gather(*(visitor.open() for visitor in visitors for _ in range(CAP)))
    assert [visitor.held() for visitor in visitors] == [CAP] * len(visitors)
    server.kill()
    cell = Cell(seconds=await all_back(visitors) * HASTE)
    await asyncio.gather(*map(ends, connections))
    return cell


async def all_back(visitors: list[Visitor]) -> float:
    return max(await asyncio.gather(*(visitor.holds(0) for visitor in visitors)))


def shape(table: str) -> list[list[str]]:
    rows = [re.split(" {2,}", line) for line in table.splitlines() if line.strip("= ")]
    return [[*row[:2], *(SECONDS.sub("… s", measured) for measured in row[2:])] for row in rows]


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(redis, Path(folder))
        asyncio.run(matrix.measure())
    print(matrix.table(), end="")
    for where, cell in matrix.cells.items():
        if cell.error:
            raise AssertionError(f"{where}: not written") from cell.error
    PRINTED.write_text(matrix.table(), encoding="utf-8")


if __name__ == "__main__":
    main()
