"""What the tests of the HTTP doors share: a site, and a way to ask it through any door."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.core.signals import request_finished
from django.db import close_old_connections
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client

from tests.entry_points import site

Ask = Callable[..., Any]


@pytest.fixture(autouse=True)
def at_the_site(request: pytest.FixtureRequest, settings: Any) -> None:
    """Serve the addresses of the test's own module, or those of the site."""
    module = request.module if hasattr(request.module, "urlpatterns") else site
    settings.ROOT_URLCONF = module.__name__
    settings.MIDDLEWARE = []
    site.seen.clear()


def close(response: HttpResponseBase) -> None:
    """As a server does; Django then looks after its database connections, which these tests do without."""
    request_finished.disconnect(close_old_connections)
    response.close()
    request_finished.connect(close_old_connections)


@pytest.fixture(params=["wsgi", "asgi"])
def client(request: pytest.FixtureRequest) -> Ask:
    """Makes a GET as a WSGI or an ASGI server would; the response has been read when it returns, unless ``open``."""

    def get(where: str, *, reads: bool = True, method: str = "get", **extra: Any) -> Any:
        response = getattr(Client(raise_request_exception=False), method)(where, **extra)
        if reads and response.streaming:
            response.read = b"".join(response.streaming_content)
        return response

    async def aget(where: str, *, reads: bool = True, method: str = "get", **extra: Any) -> Any:
        response = await getattr(AsyncClient(raise_request_exception=False), method)(where, **extra)
        if reads and response.streaming:
            response.read = b"".join([part async for part in response])
        return response

    return get if request.param == "wsgi" else lambda *args, **kwargs: asyncio.run(aget(*args, **kwargs))
