"""One short look at sockets on each ASGI server; all the ways in which they end are in test_matrix.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.sockets.servers import RULES
from tests.sockets.visitor import Visitor, echo

SETTINGS = {"RULES": {**RULES, "frames": {**RULES["frames"], "rate": "1/h"}}}


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["daphne", "uvicorn-sansio", "hypercorn", "granian"])
async def test_a_socket_is_counted_refused_and_given_back(serve: Callable[..., Any], name: str) -> None:
    (server,) = serve(name, settings=SETTINGS)
    visitor = Visitor(server)
    async with visitor.open() as socket:
        await echo(socket)
        assert visitor.held() == 1
        await socket.send("over")
        assert json.loads(await socket.recv())["code"] == "rate_limited"
    await visitor.holds(0)
