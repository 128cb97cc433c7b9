"""What a request has used, by ``request.throttle.meter``: what Django's query log and the client see, at every door."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import Group
from django.core.handlers.asgi import ASGIHandler
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import decorators, drf
from django_throttle.console.recording import recorder
from django_throttle.console.route_costs import RouteCosts, most_expensive
from django_throttle.costs.meter import Meter, current_meter
from django_throttle.observe import cost_log
from django_throttle.signals import costly
from tests.doors import Enforce
from tests.test_meter import logged

pytestmark = pytest.mark.django_db(transaction=True)
MIDDLEWARE = "django_throttle.middleware.ThrottleMiddleware"
ROWS = 30
meters: list[Meter] = []


def ask(request: Any) -> int:
    meters.append(request.throttle.meter)
    Group.objects.filter(name="nobody").update(name="somebody")
    return len(Group.objects.all()) + len(Group.objects.order_by("pk")[:5])


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("é" * ask(request))


async def awaited(request: Any) -> HttpResponse:
    meters.append(request.throttle.meter)
    await asyncio.sleep(0)
    await Group.objects.filter(name="nobody").aupdate(name="somebody")
    found = [group async for group in Group.objects.all()]
    found += [group async for group in Group.objects.order_by("pk")[:5]]
    return HttpResponse("é" * len(found))


def streamed(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[str | bytes]:
        yield "é" * (ask(request) - 1)
        yield "é".encode()

    return StreamingHttpResponse(parts())


async def astreamed(request: Any) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[str]:
        found = await awaited(request)
        yield found.content.decode()

    return StreamingHttpResponse(parts())


def broken(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield b"part" * ask(request)
        raise RuntimeError("the site's")

    return StreamingHttpResponse(parts())


async def abroken(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"part" * 30
        raise RuntimeError("the site's")

    return StreamingHttpResponse(parts())


def failing(request: HttpRequest) -> HttpResponse:
    ask(request)
    raise Http404


class Search(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        assert request.throttle is request._request.throttle  # type: ignore[attr-defined]
        return Response("é" * ask(request))


urlpatterns = [
    *[
        path(view.__name__, view, name=view.__name__)
        for view in (plain, awaited, streamed, broken, abroken, astreamed, failing)
    ],
    path("decorated", decorators.throttle("api")(plain), name="decorated"),
    path("adecorated", decorators.throttle("api")(awaited), name="adecorated"),
    path("dstreamed", decorators.throttle("api")(streamed), name="dstreamed"),
    path("dfailing", decorators.throttle("api")(failing), name="dfailing"),
    path("search", Search.as_view(), name="search_view"),
]
SYNC = ["plain", "streamed", "failing", "decorated", "dstreamed", "dfailing", "search"]
ASYNC = ["awaited", "astreamed", "adecorated"]


@pytest.fixture(autouse=True)
def site(settings: Any, enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> RouteCosts:
    enforce(api={"rate": "1000/h", "key": "ip"})
    meters.clear()
    Group.objects.bulk_create(Group(name=f"group {number}") for number in range(ROWS))
    costs = RouteCosts()
    monkeypatch.setattr(recorder, "record_request", costs.add)
    return costs


def behind(settings: Any, name: str) -> None:
    """Put the middleware in front of a view that has no door of its own."""
    if name in ("plain", "streamed", "failing", "awaited", "astreamed"):
        settings.MIDDLEWARE = [MIDDLEWARE]


def check(name: str, body: bytes, queries: list[str], costs: RouteCosts, *, is_whole: bool = True) -> None:
    (meter,) = meters
    assert meter.queries == len(queries) == 3
    assert meter.rows == ROWS + 5
    assert current_meter.get() is None
    (cost,) = most_expensive(costs.peek())
    assert (cost.scope, cost.calls) == (name, 1)
    assert (cost.spreads["queries"].p50, cost.spreads["rows"].mean) == (3, ROWS + 5)
    if is_whole:
        assert meter.bytes == len(body)
        assert cost.spreads["response_bytes"].mean == len(body)
    wall = meter.wall_ms
    assert 0 < meter.db_ms < wall == meter.wall_ms


@pytest.mark.parametrize("name", SYNC)
def test_what_a_request_used(name: str, settings: Any, site: RouteCosts) -> None:
    behind(settings, name)
    with CaptureQueriesContext(connection) as captured:
        response = Client().get(f"/{name}")
        body = b"".join(response) if response.streaming else response.content  # type: ignore[arg-type]
    response.close()
    check(name, body, logged(captured), site, is_whole=name != "dfailing")


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("name", [*ASYNC, "plain", "streamed", "decorated", "search"])
async def test_the_same_as_a_server_of_asgi_calls_the_site(name: str, settings: Any, site: RouteCosts) -> None:
    behind(settings, name)
    scope = {"type": "http", "method": "GET", "path": f"/{name}", "headers": [], "http_version": "1.1"}
    server = ApplicationCommunicator(ASGIHandler(), {**scope, "query_string": b""})
    await server.send_input({"type": "http.request", "body": b""})
    sent = [await server.receive_output(timeout=10)]
    while sent[-1]["type"] == "http.response.start" or sent[-1].get("more_body"):
        sent.append(await server.receive_output(timeout=10))
    await server.wait(timeout=10)
    (meter,) = meters
    assert (meter.queries, meter.rows) == (3, ROWS + 5)
    assert meter.bytes == sum(len(event.get("body", b"")) for event in sent)
    assert [(cost.scope, cost.calls) for cost in most_expensive(site.peek())] == [(name, 1)]


def test_a_stream_that_fails_is_recorded_with_what_it_has_used(settings: Any, site: RouteCosts) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE]
    with pytest.raises(RuntimeError, match="the site's"):
        b"".join(Client().get("/broken"))  # type: ignore[arg-type]
    assert [(cost.scope, cost.spreads["queries"].mean) for cost in most_expensive(site.peek())] == [("broken", 3)]


@pytest.mark.parametrize("name", ["plain", "decorated", "search"])
def test_a_response_can_be_cached_and_is_then_of_no_cost(name: str, settings: Any, site: RouteCosts) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": name}}
    cached = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"
    settings.MIDDLEWARE = [cached[0], *([MIDDLEWARE] if name == "plain" else []), cached[1]]
    first, second = (Client().get(f"/{name}") for _ in range(2))
    assert first.content == second.content != b""
    assert len(meters) == 1
    assert sum(cost.calls for cost in most_expensive(site.peek())) == (2 if name == "plain" else 1)


ABOVE = {"queries": 2, "rows": 1000, "response_bytes": 60}


@pytest.fixture
def costly_site(enforce: Enforce, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE]
    monkeypatch.setattr(cost_log, "log_throttle", cost_log.LogThrottle(seconds=10.0))
    enforce(api={"rate": "1000/h", "key": "ip"}, LOG_COST_ABOVE=ABOVE)


@pytest.mark.usefixtures("costly_site")
def test_lines_about_a_route_are_few_and_receivers_hear_of_each(caplog: Any) -> None:
    heard = []

    def note(sender: Any, **told: Any) -> None:
        heard.append((told["scope"], told["meter"].queries, told["above"]))

    costly.connect(note)
    try:
        for _ in range(5):
            Client().get("/plain")
        Client().get("/awaited")
    finally:
        costly.disconnect(note)
    above = ("queries", "response_bytes")
    assert heard == [("plain", 3, above)] * 5 + [("awaited", 3, above)]
    records = [record for record in caplog.records if record.name == "django_throttle.costs"]
    assert [(one.scope, one.queries, one.rows, one.above) for one in records] == [
        (scope, 3, 35, [*above]) for scope in ("plain", "awaited")
    ]
    line = records[0].getMessage()
    assert line.startswith(
        "a request used more than LOG_COST_ABOVE allows (queries over 2, response_bytes over 60): scope 'plain', "
        "GET; 3 queries, 35 rows, "
    )
    assert "(default: 3 queries 35 rows " in line
    assert " ms, auth.Group 3 queries 35 rows " in line
    assert " 70 bytes; left out since the last such line: 0" in line


@pytest.mark.usefixtures("costly_site")
async def test_an_asynchronous_receiver_hides_no_error_of_a_stream(caplog: Any) -> None:
    async def note(sender: Any, **arguments: Any) -> None: ...

    costly.connect(note)
    try:
        response: Any = await AsyncClient().get("/abroken")
        with pytest.raises(RuntimeError, match="the site's"):
            [part async for part in response]
    finally:
        costly.disconnect(note)
    assert "receiver was not called" in caplog.text
