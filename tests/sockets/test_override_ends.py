"""An override that ends by its own time is felt by open sockets as an edit is: within a second, in every process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.rulebook.test_override_edits import WRITER
from tests.rulebook.test_rule_edits import Process, environment, start
from tests.servers import RedisServer, slack
from tests.sockets.servers import Server
from tests.sockets.visitor import PATIENCE, Visitor, echo

__all__ = ["environment", "start"]  # fixtures

RULES = {"sockets": {"limit": 2, "algorithm": "concurrency", "events": ["connection"], "key": "ip"}}
MAKE = WRITER.replace('kind="user", value="1"', 'kind="ip", value="127.0.0.1"')

# For each line that it is given: what the history has of overrides, the oldest first.
LINES = """
import json, sys, django
django.setup()
from django_throttle.models import ThrottleChange
for line in sys.stdin:
    print(json.dumps([one.action for one in ThrottleChange.objects.filter(kind="override").order_by("pk")]), flush=True)
"""


@pytest.fixture
def pair(redis_server: RedisServer, tmp_path: Path, environment: dict[str, str], monkeypatch: Any) -> Iterator[Any]:
    """Two servers with one database of overrides."""
    monkeypatch.setenv("DATABASE", environment["DATABASE"])
    settings = {"RULES": RULES, "DATABASE_RULES": True}
    started = [Server("uvicorn-sansio", redis_server, tmp_path, settings=settings) for _ in range(2)]
    try:
        yield [server.wait() for server in started]
    finally:
        for server in started:
            server.kill()


async def last_words(client: ClientConnection) -> tuple[Any, float]:
    """The first frame that the server sends by itself, and when it came."""
    said = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
    return said, time.time()


async def admitted(visitor: Visitor, path: str) -> ClientConnection:
    """A socket above the limit, once the server knows of the override."""
    for _ in range(60):
        if not isinstance(opened := await visitor.attempt(path), int):
            return opened
        await asyncio.sleep(0.05)
    raise AssertionError("the override is not in force")


@pytest.mark.parametrize("path", ["chat", "strict"])
async def test_sockets_above_the_limit_are_told_and_closed(
    pair: list[Server], start: Callable[..., Process], path: str, record_property: Callable[[str, object], None]
) -> None:
    writer = start(MAKE)
    first, second = (Visitor(server) for server in pair)
    old = [await first.open(path), await second.open(path)]
    writer.say("4")
    _, until = map(float, writer.hear().split())
    newest = [await admitted(visitor, path) for visitor in (first, second)]
    assert time.time() < until
    told = [await last_words(client) for client in newest]
    late = [at - until for _, at in told]
    print(f"told {', '.join(f'{seconds:.2f}' for seconds in late)} s after it ended")
    record_property("late", late)
    assert [(said["type"], said["code"], said["limit"]) for said, _ in told] == [("error", "connection_limit", 2)] * 2
    assert min(late) >= 0
    assert max(late) <= slack(1.0)
    for client in newest:
        if path == "strict":
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(client.recv(), PATIENCE)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4430
        else:
            await echo(client)
    for client in old:
        await echo(client)
    reader = start(LINES)
    told_once: list[str] = []
    while "ran out" not in told_once:
        reader.say("")
        told_once = json.loads(reader.hear())
    await asyncio.sleep(0.6)  # in which the other process has polled too
    reader.say("")
    assert json.loads(reader.hear()) == ["added", "ran out"]
    for client in (*old, *newest):
        await client.close()
