"""A server is told to end: of its process nothing is left in Redis when it has, with sockets and without."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from redis import Redis

from django_throttle.core import Rule
from tests.damper.test_processes import counted
from tests.servers import RedisServer, wait_until
from tests.websockets.servers import RULES, Server, Visitor, echo, ends

DEFAULTS: dict[str, Any] = {"PROCESS_TTL": 20.0}
MANY: dict[str, Any] = {
    **RULES,
    "news": {"rate": "100/min", "events": ["publish"], "key": "tests.served.caller"},
    "sockets": {**RULES["sockets"], "limit": 100},
}
DAMPED: dict[str, Any] = {"rate": "1000/s", "algorithm": "damper", "events": ["message"], "key": "tests.served.caller"}


@pytest.fixture
def redis(servers: None, redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


def members(redis: Redis, keys: list[str] | None = None) -> int:
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
    server = Server(name, redis_server, tmp_path, settings={**DEFAULTS, "RULES": MANY})
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
    redis.flushall()
    settings = {**DEFAULTS, "RULES": {**MANY, "frames": DAMPED}}
    server = Server(name, redis_server, tmp_path, settings=settings)
    try:
        visitor = Visitor(server.wait())
        connections = [await visitor.open("group") for _ in range(5)]
        connection = connections[0]
        await asyncio.to_thread(wait_until, lambda: members(redis) == 5)
        groups = hashes(redis)
        for number in range(30):
            await echo(connection, str(number))
        rule, ident = Rule.from_options("frames", DAMPED), f"tests.served.caller:{visitor.name}"
        ending = asyncio.create_task(server.terminate())
        if name == "hypercorn":  # from Python 3.12.1 on it waits for its clients
            await asyncio.gather(*(each.close() for each in connections))
        await asyncio.gather(ending, *map(ends, connections))
        assert counted(redis_server.url, rule, ident, django_settings.SECRET_KEY) == 30
        assert (redis.zcard("dt:{p}:live"), members(redis, groups), visitor.held()) == (0, 0, 0)
    finally:
        server.kill()
