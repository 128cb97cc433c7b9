"""What a real server reports of its peers, over TCP and over a Unix socket, and who the client is then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.handlers.asgi import ASGIRequest
from uvicorn import Config, Server

from django_throttle.identity import HttpWho, ScopeWho
from tests.servers import free_port

pytestmark = pytest.mark.usefixtures("servers")
CLIENT, LIE = "203.0.113.9", "198.51.100.7"
SAID = [("X-Forwarded-For", LIE), ("X_Forwarded_For", "192.0.2.66"), ("X-Forwarded-For", CLIENT)]


async def who(scope: Any, receive: Any, send: Any) -> None:
    """Answers with both idents: as a socket's scope has it, and as Django's request does."""
    found = [ScopeWho(scope).ident("ip"), HttpWho(ASGIRequest(scope, BytesIO())).ident("ip")]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": " ".join(map(str, found)).encode()})


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[None]:
    server = Server(Config(who, lifespan="off", log_config=None, **options))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        assert not task.done()
    yield
    server.should_exit = True
    await task


@pytest.fixture
def trust(settings: Any) -> Callable[[Any], None]:
    def trust(proxies: Any) -> None:
        settings.DJANGO_THROTTLE = {"TRUSTED_PROXIES": proxies, "AGENT": False}

    return trust


async def ask(url: str, **options: Any) -> set[str]:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(**options)) as client:
        return set((await client.get(url, headers=SAID)).text.split())


@pytest.mark.row("A04")
@pytest.mark.row("A10")
@pytest.mark.parametrize("reads_headers", [False, True])
async def test_a_client_behind_a_real_server(tmp_path: Path, trust: Callable[[Any], None], reads_headers: bool) -> None:
    """A server that reads the header itself has the client's address already, and we agree."""
    socket, port = str(tmp_path / "site.sock"), free_port()
    undeclared = f"ip:{CLIENT}" if reads_headers else "ip:127.0.0.1"
    async with serving(uds=socket, proxy_headers=reads_headers):
        for proxies, found in [(None, "None"), ((), "None"), (["unix"], f"ip:{CLIENT}"), (1, f"ip:{CLIENT}")]:
            trust(proxies)
            assert await ask("http://site/", uds=socket) == {found}, proxies
    async with serving(port=port, proxy_headers=reads_headers):
        declared = [(["127.0.0.0/8"], f"ip:{CLIENT}"), (1, f"ip:{CLIENT}")]
        for proxies, found in [(None, undeclared), (["10.0.0.0/8"], undeclared), *declared]:
            trust(proxies)
            assert await ask(f"http://127.0.0.1:{port}/") == {found}, proxies
