"""A server is told to end: of its process nothing is left in Redis when it has, with sockets and without."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from redis import Redis

from django_throttle.core import Rule
from tests.damper.test_processes import counted
from tests.servers import RedisServer, free_port, slack, wait_until
from tests.sockets.servers import RULES, Server, Visitor, echo, ends
from tests.web_server import ROOT

USUAL: dict[str, Any] = {"BEAT_INTERVAL": 5.0, "PROCESS_TTL": 20.0}
MANY: dict[str, Any] = {
    **RULES,
    "news": {"rate": "100/min", "events": ["publish"], "key": "tests.served.who"},
    "sockets": {**RULES["sockets"], "limit": 100},
}
DAMPED: dict[str, Any] = {"rate": "1000/s", "algorithm": "damper", "events": ["message"], "key": "tests.served.who"}
NEVER = 600.0  # seconds between two reports


@pytest.fixture
def redis(servers: None, redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


def members(redis: Redis) -> int:
    """Of all groups, as publishers are charged for them."""
    told = [text for key in redis.scan_iter("dt:*", _type="hash") if "{p}" not in key for text in redis.hvals(key)]
    return sum(int(text.partition(":")[0]) for text in told if text.replace(":", "").isdigit())


@pytest.mark.row("F44")
@pytest.mark.parametrize(
    ("name", "sockets"),
    [
        *[(name, sockets) for name in ("uvicorn-sansio", "hypercorn", "daphne") for sockets in (20, 0)],
        # With open sockets a worker of granian aborts now and then (pyo3), or never ends.
        ("granian", 0),
    ],
)
async def test_nothing_is_left_of_who_was_told_to_end(
    name: str, sockets: int, redis_server: RedisServer, redis: Redis, tmp_path: Path
) -> None:
    redis.flushall()
    server = Server(name, redis_server, tmp_path, settings={**USUAL, "RULES": MANY})
    try:
        await assert_leaves_nothing(server.wait(), sockets, redis)
    finally:
        server.kill()


async def assert_leaves_nothing(server: Server, sockets: int, redis: Redis) -> None:
    visitor = Visitor(server)
    connections = [await visitor.open("group") for _ in range(sockets or 1)]
    if not sockets:
        await connections.pop().close()
    else:
        async with asyncio.timeout(slack(10)):
            while await asyncio.to_thread(members, redis) != sockets:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert redis.zcard("dt:{p}:live") == 1
    watching = [asyncio.create_task(ends(connection)) for connection in connections]
    ending = asyncio.create_task(server.terminate())
    await asyncio.sleep(0)
    if server.name == "hypercorn":  # from Python 3.12.1 on it waits for its clients
        await asyncio.gather(*(connection.close() for connection in connections))
    await ending
    ended = time.monotonic()
    left = {"live": redis.zcard("dt:{p}:live"), "members": members(redis), "held": visitor.held()}
    await asyncio.gather(*watching)
    assert left == {"live": 0, "members": 0, "held": 0}, f"{time.monotonic() - ended:.2f} s after it has ended"


@pytest.mark.row("F44")
@pytest.mark.parametrize("name", ["uvicorn-sansio", "uvicorn-websockets", "hypercorn", "daphne"])
@pytest.mark.usefixtures("servers")
async def test_the_last_reports_of_dampers_arrive(name: str, redis_server: RedisServer, tmp_path: Path) -> None:
    """Nothing is due before the end, and a socket is open then."""
    settings = {**USUAL, "DAMPER_INTERVAL": NEVER, "RULES": {**RULES, "frames": DAMPED}}
    server = Server(name, redis_server, tmp_path, settings=settings)
    try:
        visitor = Visitor(server.wait())
        connection = await visitor.open()
        for number in range(30):
            await echo(connection, str(number))
        rule, ident = Rule.from_options("frames", DAMPED), f"tests.served.who:{visitor.name}"
        assert counted(redis_server.url, rule, ident, django_settings.SECRET_KEY) == 0
        ending = asyncio.create_task(server.terminate())
        if name == "hypercorn":  # from Python 3.12.1 on it waits for its clients
            await connection.close()
        await asyncio.gather(ending, ends(connection))
        assert counted(redis_server.url, rule, ident, django_settings.SECRET_KEY) == 30
    finally:
        server.kill()


def test_a_site_of_synchronous_views_under_uvicorn(redis_server: RedisServer, redis: Redis, tmp_path: Path) -> None:
    """Its decisions are made in other threads than the one that gets the signal."""
    redis.flushall()
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "REDIS_URL": redis_server.url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    environment["DATABASE"] = str(tmp_path / "db.sqlite3")
    subprocess.run(
        [sys.executable, "-m", "testproject.manage", "migrate", "-v", "0"], cwd=ROOT, env=environment, check=True
    )
    command = [sys.executable, "-m", "uvicorn", "--port", str(port), "testproject.asgi:application"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Uvicorn running" in log.read_text(), timeout=slack(60), every=0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/search", timeout=30) as answer:
            assert answer.status == 200
        wait_until(lambda: redis.zcard("dt:{p}:live") == 1)
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM, "as uvicorn ends"
        assert redis.zcard("dt:{p}:live") == 0
    finally:
        process.kill()
        process.wait()
