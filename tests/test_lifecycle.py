"""A server is told to end: of its process nothing is left in Redis when it has, with sockets and without."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from redis import Redis

from django_throttle.core import Rule
from tests.damper.test_processes import counted
from tests.servers import RedisServer, wait_until
from tests.sockets.servers import RULES, Server, Visitor, echo, ends
from tests.web_server import ROOT, WebServer

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


def members(redis: Redis, keys: list[str] | None = None) -> int:
    """Of all groups, as publishers are charged for them."""
    told = [text for key in keys or hashes(redis) if "{p}" not in key for text in redis.hvals(key)]
    return sum(int(text.partition(":")[0]) for text in told if text.replace(":", "").isdigit())


def hashes(redis: Redis) -> list[str]:
    return list(redis.scan_iter("dt:*", _type="hash"))


@pytest.mark.row("F44")
@pytest.mark.parametrize("name", ["granian", "daphne"])
async def test_nothing_is_left_of_a_server_without_sockets(
    name: str, redis_server: RedisServer, redis: Redis, tmp_path: Path
) -> None:
    redis.flushall()
    server = Server(name, redis_server, tmp_path, settings={**USUAL, "RULES": MANY})
    try:
        visitor = Visitor(server.wait())
        await (await visitor.open("group")).close()
        assert redis.zcard("dt:{p}:live") == 1
        await server.terminate()
        assert (redis.zcard("dt:{p}:live"), members(redis), visitor.held()) == (0, 0, 0)
    finally:
        server.kill()


@pytest.mark.row("F44")
@pytest.mark.parametrize("name", ["uvicorn-sansio", "uvicorn-websockets", "hypercorn", "daphne"])
@pytest.mark.usefixtures("servers")
async def test_with_sockets_the_last_reports_arrive_and_nothing_is_left(
    name: str, redis_server: RedisServer, redis: Redis, tmp_path: Path
) -> None:
    """Reports of dampers, which are not due before the end."""
    redis.flushall()
    settings = {**USUAL, "DAMPER_INTERVAL": NEVER, "RULES": {**MANY, "frames": DAMPED}}
    server = Server(name, redis_server, tmp_path, settings=settings)
    try:
        visitor = Visitor(server.wait())
        connections = [await visitor.open("group") for _ in range(5)]
        connection = connections[0]
        await asyncio.to_thread(wait_until, lambda: members(redis) == 5)
        groups = hashes(redis)
        for number in range(30):
            await echo(connection, str(number))
        rule, ident = Rule.from_options("frames", DAMPED), f"tests.served.who:{visitor.name}"
        assert counted(redis_server.url, rule, ident, django_settings.SECRET_KEY) == 0
        ending = asyncio.create_task(server.terminate())
        if name == "hypercorn":  # from Python 3.12.1 on it waits for its clients
            await asyncio.gather(*(each.close() for each in connections))
        await asyncio.gather(ending, *map(ends, connections))
        assert counted(redis_server.url, rule, ident, django_settings.SECRET_KEY) == 30
        assert (redis.zcard("dt:{p}:live"), members(redis, groups), visitor.held()) == (0, 0, 0)
    finally:
        server.kill()


def test_a_site_of_synchronous_views_under_uvicorn(redis_server: RedisServer, redis: Redis, tmp_path: Path) -> None:
    """Its decisions are made in other threads than the one that gets the signal."""
    redis.flushall()
    server = WebServer("uvicorn", tmp_path, "Uvicorn running")
    environment = {**os.environ, "REDIS_URL": redis_server.url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    environment["DATABASE"] = str(tmp_path / "db.sqlite3")
    migrate = [sys.executable, "-m", "testproject.manage", "migrate", "-v", "0"]
    subprocess.run(migrate, cwd=ROOT, env=environment, check=True)
    server.launch(["uvicorn", "--port", str(server.port), "testproject.asgi:application"], environment)
    try:
        server.wait_until_it_serves()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/search", timeout=30) as answer:
            assert answer.status == 200
        wait_until(lambda: redis.zcard("dt:{p}:live") == 1)
        server.signal()
        assert server.process.wait(30) == -signal.SIGTERM, "as uvicorn ends"
        assert redis.zcard("dt:{p}:live") == 0
    finally:
        server.kill()
