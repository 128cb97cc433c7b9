"""Every server and every way in which a socket ends: the slots are back in time. See matrix.py."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.servers import matrix
from tests.lab.servers.matrix import HALF_OPEN, KILLED, TERMINATED, Matrix, Row
from tests.servers import RedisServer, slack
from tests.websockets.servers import HASTE, HASTY, PING, PONG, SERVERS

pytestmark = pytest.mark.usefixtures("servers", "stopwatch")
LABELS = {
    KILLED.id: "slots back after, by default,",
    TERMINATED.id: "slots back after its end",
    HALF_OPEN.id: f"slot back after, with pings each {PING} s and {PONG} s to answer,",
}
MARKS = {
    "giant": pytest.mark.row("A45"), KILLED.id: pytest.mark.row("F43"), TERMINATED.id: pytest.mark.row("F44"),
    HALF_OPEN.id: pytest.mark.row("F46"),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(redis_server: RedisServer, tmp_path_factory: Any) -> Matrix:
    found = Matrix(redis_server, tmp_path_factory.mktemp("servers"))
    asyncio.run(found.measure())
    print(found.table())
    return found


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id, marks=MARKS.get(row.id, ())) for row in matrix.ROWS])
def test_slots_are_back_in_time(measured: Matrix, row: Row, server: str, figure: Callable[..., None]) -> None:
    cell = measured.cells[row.id, server]
    if cell.error:
        raise AssertionError(f"{row.words} on {server}") from cell.error
    if row.id in LABELS:
        figure(LABELS[row.id], cell.seconds, "s")
    haste = HASTE if row is KILLED else 1
    assert cell.seconds / haste <= slack(measured.within(row, server) / haste)
    # Nobody could have swept up after a server that ends by itself by then.
    assert row is not TERMINATED or cell.seconds <= row.within < 0.75 * HASTY["PROCESS_TTL"]


def test_the_page_has_this_table(measured: Matrix) -> None:
    """Save for the times. To write it anew: python -m tests.lab.servers.matrix"""
    raised = measured.cells["exception", "hypercorn"]
    if raised.seen == "1006":  # it was too busy to send what it usually does
        measured.cells["exception", "hypercorn"] = raised._replace(seen="1011")
    assert matrix.shape(matrix.PRINTED.read_text(encoding="utf-8")) == matrix.shape(measured.table())
