"""Whatever becomes of a request, its slot comes back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client
from django.utils.decorators import async_only_middleware
from django.utils.http import http_date

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from tests.doors import BOTH, REDIS, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask, close
from tests.servers import wait_until

ONE: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}


def free() -> int | None:
    return Limiter([Rule("api", **ONE)], get_store()).peek("everyone").remaining


@REDIS
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("address", ["/middleware/{}", "/async-decorated/{}", "/drf/{}", "/ninja/async/{}"])
def test_a_response_that_streams_holds_its_slot_until_it_is_closed(
    enforce: Enforce, settings: Any, client: Ask, address: str
) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE if "middleware" in address else []
    enforce(api=ONE)
    for doing in ("stream", "file"):
        response = client(address.format(doing), reads=False)
        assert free() == 0
        assert client(address.format("ok")).status_code == 429
        close(response)
        close(response)
        assert free() == 1
        assert client(address.format("ok")).status_code == 200


def failing() -> Iterator[bytes]:
    yield b"part"
    raise ZeroDivisionError


async def afailing() -> AsyncIterator[bytes]:
    yield b"part"
    raise ZeroDivisionError


@REDIS
@pytest.mark.parametrize("address", ["/middleware/broken", "/decorated/broken", "/async-drf/broken"])
def test_a_stream_that_fails_gives_its_slot_back(
    enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch, client: Ask, address: str
) -> None:
    def broken(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(afailing() if isinstance(request, ASGIRequest) else failing())

    settings.MIDDLEWARE = site.MIDDLEWARE if "middleware" in address else []
    monkeypatch.setitem(site.DOINGS, "broken", broken)
    enforce(api=ONE)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            client(address)
        assert free() == 1


def replacing(get_response: Any) -> Any:
    """Answers with something else, and forgets to close what it was given."""
    return lambda request: get_response(request) and HttpResponse("else")


def raising(get_response: Any) -> Any:
    return lambda request: get_response(request) and site.fail(request)


@BOTH
@pytest.mark.parametrize(
    ("outer", "status"),
    [
        ("django.middleware.http.ConditionalGetMiddleware", 304),  # of every file: Django's own does so
        (f"{__name__}.replacing", 200),
        (f"{__name__}.raising", 500),
    ],
)
@pytest.mark.parametrize("inner", ["middleware", "decorated", "drf"])
def test_a_response_that_nobody_closes_gives_its_slot_back(
    enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch, outer: str, status: int, inner: str
) -> None:
    settings.MIDDLEWARE = [outer, *(site.MIDDLEWARE if inner == "middleware" else [])]
    enforce(api=ONE)
    dated = lambda request: FileResponse(BytesIO(b"file"), headers={"Last-Modified": http_date(1000)})  # noqa: E731
    monkeypatch.setitem(site.DOINGS, "dated", dated)
    client, headers = Client(raise_request_exception=False), {"If-Modified-Since": http_date(2000)}
    for _ in range(3):
        assert client.get(f"/{inner}/dated", headers=headers).status_code == status
        assert free() == 1
    assert site.seen == [1] * 3


kept: list[Any] = []


@async_only_middleware
def keeping(get_response: Any) -> Any:
    """Keeps the response for as long as its client stays, and as exceptions do, longer."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        await sync_to_async(len)(kept)
        kept.append(await get_response(request))
        await asyncio.Event().wait()
        raise AssertionError

    return middleware


@pytest.mark.parametrize("inner", ["decorated", "async-decorated"])
async def test_a_client_who_leaves_before_the_response_is_sent_holds_no_slot(
    enforce: Enforce, settings: Any, inner: str
) -> None:
    settings.MIDDLEWARE = [f"{__name__}.keeping"]
    enforce(api=ONE)
    kept.clear()
    scope = {"type": "http", "method": "GET", "path": f"/{inner}/stream", "headers": [], "query_string": b""}
    server = ApplicationCommunicator(ASGIHandler(), {**scope, "http_version": "1.1"})
    await server.send_input({"type": "http.request"})
    await asyncio.to_thread(wait_until, lambda: kept)
    assert free() == 0
    await server.send_input({"type": "http.disconnect"})
    await server.wait()
    assert kept and free() == 1
