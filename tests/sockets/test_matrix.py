"""Every server and every way in which a socket ends: the slots are back in time. See matrix.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.servers import matrix
from tests.lab.servers.matrix import HALF_OPEN, KILLED, QUICK, TERMINATED, Cell, Matrix, Row
from tests.servers import RedisServer, slack
from tests.sockets.servers import HASTE, HASTY, PING, PONG, SERVERS

# The order of the columns in docs/reference/servers.rst.
pytestmark = pytest.mark.usefixtures("servers", "stopwatch")
ON_EVERY_SERVER = pytest.mark.parametrize("server", SERVERS)


@pytest.fixture(scope="module")
def measured(redis_server: RedisServer, tmp_path_factory: Any) -> Matrix:
    found = Matrix(redis_server, tmp_path_factory.mktemp("servers"))
    asyncio.run(found.measure())
    print(found.table())
    return found


def in_time(measured: Matrix, row: Row, server: str) -> Cell:
    """It came to be, and in time; and twice that where the machine may be busy with others."""
    found = measured.cells[row.id, server]
    if found.error:
        raise AssertionError(f"{row.words} on {server}") from found.error
    haste = HASTE if row is KILLED else 1
    assert found.seconds / haste <= slack(measured.within(row, server) / haste)
    return found


@ON_EVERY_SERVER
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.row("A45") if row.id == "giant" else ()) for row in QUICK],
    ids=lambda row: row.id,
)
def test_slots_are_back_at_once(measured: Matrix, row: Row, server: str) -> None:
    in_time(measured, row, server)


@ON_EVERY_SERVER
def test_refusals_are_http_responses_where_a_server_sends_them(measured: Matrix, server: str) -> None:
    assert measured.cells["refused", server].seen == ("429" if SERVERS[server].denies else "403")
    assert measured.cells["frame", server].seen == "4430"
    assert measured.cells["flooded", server].seen == "4429"
    assert measured.cells["closed", server].seen == "4001"


@ON_EVERY_SERVER
@pytest.mark.parametrize(
    ("row", "label"),
    [
        pytest.param(KILLED, "slots back after, by default,", marks=pytest.mark.row("F43")),
        pytest.param(TERMINATED, "slots back after its end", marks=pytest.mark.row("F44")),
        pytest.param(
            HALF_OPEN,
            f"slot back after, with pings each {PING} s and {PONG} s to answer,",
            marks=pytest.mark.row("F46"),
        ),
    ],
    ids=["f43", "f44", "f46"],
)
def test_slots_are_back_once_a_server_or_a_client_has_gone(
    measured: Matrix, row: Row, label: str, server: str, figure: Callable[..., None]
) -> None:
    seconds = in_time(measured, row, server).seconds
    figure(label, seconds, "s")
    # Nobody could have swept up after a server that ends by itself by then.
    assert row is not TERMINATED or seconds <= row.within < HASTY["PROCESS_TTL"] - HASTY["BEAT_INTERVAL"]


def test_the_page_has_this_table(measured: Matrix) -> None:
    """Save for the times. To write it anew: python -m tests.lab.servers"""
    raised = measured.cells["exception", "hypercorn"]
    if raised.seen == "1006":  # it was too busy to send what it usually does
        measured.cells["exception", "hypercorn"] = raised._replace(seen="1011")
    assert matrix.shape(matrix.printed()) == matrix.shape(measured.table())
