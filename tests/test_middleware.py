"""The middleware: rules by route, sync and async, requests included that no view answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, modify_settings
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import decorators, drf
from django_throttle.http.request_state import decisions_of
from django_throttle.middleware import ThrottleMiddleware
from django_throttle.stores import RedisStore
from tests.doors import BOTH, Enforce, enforcer
from tests.inside import count_in

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_throttle.middleware.ThrottleMiddleware",
]


class Search(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]

    def get(self, request: Request) -> Response:
        return Response({"decisions": len(decisions_of(request._request))})


def plain(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("plain")


@decorators.throttle("api")
async def decorated(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("decorated")


urlpatterns = [
    path("search/", Search.as_view(), name="search"),
    path("plain/<int:number>", plain, name="plain"),
    path("unnamed/<int:number>", plain),
    path("decorated", decorated, name="decorated"),
]

enforce = pytest.fixture(enforcer)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = MIDDLEWARE


@pytest.fixture(params=["sync", "async"])
def get(request: pytest.FixtureRequest) -> Any:
    """Makes a GET through the middleware's sync or async side."""
    if request.param == "sync":
        client = Client()
        return client.get
    aclient = AsyncClient()
    return lambda where, **extra: asyncio.run(aclient.get(where, **extra))


@BOTH
def test_refuses_with_429_retry_after_and_a_problem_document(enforce: Enforce, get: Any) -> None:
    enforce(api={"rate": "2/min", "scopes": ["plain"], "algorithm": "fixed_window"})
    assert [get(f"/plain/{number}").status_code for number in range(3)] == [200, 200, 429]
    refused = get("/plain/9")
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert refused["Content-Type"] == "application/problem+json"
    body = json.loads(refused.content)
    assert body["violated-policies"] == ["api"] and body["status"] == 429
    assert body["type"].endswith("#quota-exceeded")


@modify_settings(INSTALLED_APPS={"remove": "django_throttle"})
def test_without_the_app_it_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on: suites of Django's own take apps away beneath a middleware."""
    ThrottleMiddleware(plain)
    assert "'django_throttle' is not in INSTALLED_APPS" in caplog.text


@pytest.mark.parametrize(
    "where", ["/plain/1", "/plain/2", "/plain/01", "/plain/3?x=1", "/plain/%34", "/plain/5#fragment"]
)
def test_the_route_counts_and_not_the_path(enforce: Enforce, get: Any, where: str) -> None:
    enforce(api={"rate": "1/min", "scopes": ["plain"]})
    assert get("/plain/7").status_code == 200
    assert get(where).status_code == 429


def test_a_route_without_a_name_is_its_own_scope(enforce: Enforce, get: Any) -> None:
    enforce(api={"rate": "1/min", "scopes": ["unnamed/*"]})
    assert [get(f"/unnamed/{number}").status_code for number in range(2)] == [200, 429]
    assert get("/plain/1").status_code == 200


def test_what_no_view_answers_is_limited_too(enforce: Enforce, get: Any) -> None:
    enforce(probes={"rate": "3/min", "scopes": ["404"]})
    statuses = [get(where).status_code for where in ("/wp-login.php", "/.env", "//plain/1", "/nowhere")]
    assert statuses == [404, 404, 404, 429]


def test_a_method_is_no_way_around(enforce: Enforce) -> None:
    enforce(api={"rate": "3/min", "scopes": ["plain"]})
    client = Client()
    calls = [client.get, client.head, client.options, client.post]
    assert [call("/plain/1").status_code for call in calls] == [200, 200, 200, 429]


@BOTH
def test_a_rule_that_several_doors_see_is_charged_once(enforce: Enforce, get: Any) -> None:
    store = enforce(api={"rate": "10/min", "algorithm": "fixed_window", "key": "everyone"})
    assert json.loads(get("/search/").content) == {"decisions": 2}
    assert get("/decorated").content == b"decorated"
    assert remaining(store) == 8


def remaining(store: Any) -> int | None:
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter

    rule = Rule("api", "10/min", algorithm="fixed_window")
    return Limiter([rule], store).peek("everyone").remaining


@pytest.mark.django_db
def test_users_have_budgets_of_their_own(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min", "scopes": ["plain"], "key": "user_or_ip"})
    known, nobody = Client(), Client()
    known.force_login(User.objects.create_user("somebody"))
    assert [known.get("/plain/1").status_code for _ in range(2)] == [200, 429]
    assert [nobody.get("/plain/1").status_code for _ in range(2)] == [200, 429]


@pytest.mark.django_db(transaction=True)
async def test_and_so_they_have_on_an_event_loop(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min", "scopes": ["plain"], "key": "user"})
    known, nobody = AsyncClient(), AsyncClient()
    await known.aforce_login(await User.objects.acreate_user("somebody"))
    assert [(await known.get("/plain/1")).status_code for _ in range(2)] == [200, 429]
    assert [(await nobody.get("/plain/1")).status_code for _ in range(2)] == [200, 200]


def test_a_failed_store_is_a_503_where_the_rule_says_so(
    enforce: Enforce, get: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce(api={"rate": "1/min", "on_store_failure": "deny"})
    count_in(RedisStore("redis://127.0.0.1:1/0"), monkeypatch)
    answer = get("/plain/1")
    assert answer.status_code == 503 and int(answer["Retry-After"]) >= 1
    assert json.loads(answer.content)["type"].endswith("#temporary-reduced-capacity")
