"""Rules of measured units at the doors of HTTP: a reserve beforehand, what the request has used in the end."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import measured
from django_throttle.core import Rule
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.exceptions import Refused
from django_throttle.limiter import Limiter
from django_throttle.measured import learned_means
from django_throttle.stores import get_store
from tests.doors import BOTH, Enforce, enforcer
from tests.inside import unsaid

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
enforce = pytest.fixture(enforcer)
QUERIES: dict[str, Any] = {"rate": "100/h", "unit": "queries", "reserve": 10, "key": "everyone"}
DOORS = ["plain", "decorated", "drf"]


def ask(request: HttpRequest) -> HttpResponse:
    for _ in range(int(request.GET["queries"])):
        Group.objects.count()
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse("é" * 10, status=int(request.GET.get("status", 200)))


class View(APIView):
    throttle_classes = [RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response(status=ask(request._request).status_code)


urlpatterns = [
    path("plain", ask, name="plain"),
    path("decorated", throttle("api")(ask), name="decorated"),
    path("drf", View.as_view(), name="drf"),
]


def twice(request: Any) -> int:
    return int(request.GET["queries"]) * 2


def of_both(request: Any, response: Any) -> int:
    return int(request.GET["queries"]) + response.status_code


def left(**options: Any) -> int | None:
    return Limiter([Rule("api", **{**QUERIES, **options})], get_store()).peek("everyone").remaining


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(measured, monkeypatch)


@pytest.fixture(autouse=True)
def _middleware(settings: Any, request: pytest.FixtureRequest) -> None:
    learned_means.clear()
    door = request.node.callspec.params.get("door")
    settings.MIDDLEWARE = [] if door in ("decorated", "drf") else ["django_throttle.middleware.ThrottleMiddleware"]


def fails(request: Any, response: Any) -> int:
    raise ZeroDivisionError


def negative(request: Any, response: Any) -> int:
    return -1


def get(door: str, queries: int, **query: Any) -> Any:
    return Client(raise_request_exception=False).get(f"/{door}", {"queries": queries, **query})


@BOTH
@pytest.mark.parametrize("door", DOORS)
def test_a_request_is_charged_its_queries_in_the_end(enforce: Enforce, door: str) -> None:
    enforce(api=QUERIES)
    assert get(door, 3).headers["RateLimit"].startswith('"api";r=90')
    assert left() == 97
    assert get(door, 25, fail=1).status_code == 500
    assert left() == 72
    get(door, 80)
    assert left() == 0
    assert get(door, 1).status_code == 429


@BOTH
@pytest.mark.parametrize("door", DOORS)
def test_a_result_that_is_refunded_uses_up_nothing(enforce: Enforce, door: str) -> None:
    options = {"refund_on": [304, "5xx"]}
    enforce(api={**QUERIES, **options})
    for status, remaining in ((304, 100), (500, 100), (404, 96)):
        get(door, 4, status=status)
        assert left(**options) == remaining


@BOTH
@pytest.mark.parametrize(
    ("options", "queries", "told", "charged"),
    [
        ({"unit": "units", "reserve": f"{__name__}.twice", "measure": f"{__name__}.of_both"}, 30, 940, 230),
        ({"unit": "units", "reserve": f"{__name__}.twice", "measure": f"{__name__}.of_both"}, 600, 0, 800),
        ({"METER": False}, 3, 990, 10),
        ({"unit": "response_bytes"}, 0, 990, 20),
    ],
    ids=["functions", "more than is allowed", "no meter", "bytes"],
)
def test_what_is_reserved_and_what_is_charged(
    enforce: Enforce, options: dict[str, Any], queries: int, told: int, charged: int
) -> None:
    settings = {name: value for name, value in options.items() if name.isupper()}
    options = {"rate": "1000/h", **{name: value for name, value in options.items() if name.islower()}}
    enforce(api={**QUERIES, **options}, **settings)
    assert get("plain", queries).headers["RateLimit"].startswith(f'"api";r={told}')
    assert left(**options) == 1000 - charged


@BOTH
def test_the_mean_is_reserved_once_it_is_known(enforce: Enforce) -> None:
    options = {"reserve": "mean", "rate": "1000/h"}
    enforce(api={**QUERIES, **options})
    assert get("plain", 16).headers["RateLimit"].startswith('"api";r=999')
    assert get("plain", 16).headers["RateLimit"].startswith('"api";r=968')
    assert left(**options) == 968


@BOTH
@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (f"{__name__}.fails", f"measure {__name__}.fails: it raised ZeroDivisionError"),
        (f"{__name__}.negative", f"measure {__name__}.negative: a cost must be a whole number from 0 on, not -1"),
    ],
)
def test_where_nothing_could_be_measured_the_reserve_stays(
    enforce: Enforce, measure: str, said: str, caplog: Any
) -> None:
    options = {"unit": "units", "measure": measure}
    enforce(api={**QUERIES, **options}, rows={**QUERIES, "unit": "rows"})
    assert get("plain", 4).status_code == 200
    assert left(**options) == 90
    assert Limiter([Rule("rows", **{**QUERIES, "unit": "rows"})], get_store()).peek("everyone").remaining == 96
    assert f"{said}; under rule 'api' what was reserved stays charged" in caplog.text


def ask_often(queries: int) -> None:
    for _ in range(queries):
        Group.objects.count()
    if queries == 13:
        raise ZeroDivisionError


@throttle("api", ident="everyone")
async def aask_often(queries: int) -> None:
    await sync_to_async(ask_often)(queries)


@BOTH
@pytest.mark.parametrize("ask", [throttle("api", ident="everyone")(ask_often), async_to_sync(aask_often)])
def test_a_callable_is_charged_what_it_has_used(enforce: Enforce, ask: Any) -> None:
    enforce(api=QUERIES)
    ask(20)
    with pytest.raises(ZeroDivisionError):
        ask(13)
    assert left() == 67
    ask(90)
    assert left() == 0
    with pytest.raises(Refused):
        ask(1)
