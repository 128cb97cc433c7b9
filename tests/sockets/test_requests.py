"""What sockets hold is no business of requests: a rule that is copied from the page on WebSockets locks nobody out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.pages import shown
from tests.servers import RedisServer
from tests.sockets.servers import Server


def rules_shown() -> dict[str, Any]:
    """The concurrency rules of the page, word for word, by the address of whoever is not logged in."""
    rules: dict[str, Any] = {}
    for block in shown("sockets"):
        if block.startswith("DJANGO_THROTTLE"):
            found: dict[str, Any] = {}
            exec(block, found)
            rules |= found["DJANGO_THROTTLE"]["RULES"]
    held = {name: rule for name, rule in rules.items() if rule.get("algorithm") == "concurrency"}
    assert set(held) == {"sockets", "tabs"}
    return {name: {**rule, "key": "ip"} for name, rule in held.items()}


@pytest.mark.parametrize("rules", ["sockets", "tabs"])
async def test_whoever_has_all_their_sockets_open_still_gets_pages(
    redis_server: RedisServer, tmp_path: Path, rules: str
) -> None:
    rule = rules_shown()[rules]
    settings = {"RULES": {rules: rule}, "PREFIX": f"page-{rules}"}
    server = Server("uvicorn-websockets", redis_server, tmp_path, settings=settings)
    try:
        server.wait()
        async with AsyncExitStack() as stack, httpx.AsyncClient(trust_env=False) as client:
            for _ in range(rule["limit"]):
                await stack.enter_async_context(connect(f"ws://127.0.0.1:{server.port}/chat", proxy=None))
            if "at_limit" not in rule:
                with pytest.raises(InvalidStatus):
                    await connect(f"ws://127.0.0.1:{server.port}/chat", proxy=None)
            answers = [await client.get(f"http://127.0.0.1:{server.port}/favicon.ico") for _ in range(3)]
            assert [answer.status_code for answer in answers] == [302] * 3
    finally:
        server.kill()
