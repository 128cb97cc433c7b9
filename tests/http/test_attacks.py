"""What attackers try at the doors of HTTP, by its number in the catalogue of attacks, and the figure that holds."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import stores
from django_throttle.core import Rule
from django_throttle.core.commands import Decide
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.limiter import Limiter
from django_throttle.middleware import ThrottleMiddleware
from django_throttle.stores import RedisStore
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask
from tests.inside import commands_to, count_in

LIMIT = 20
PER_MINUTE: dict[str, Any] = {"rate": f"{LIMIT}/min", "algorithm": "sliding_log", "key": "everyone"}
tried: list[str] = []


class Api(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    renderer_classes: ClassVar[Any] = [JSONRenderer]

    def get(self, request: Request) -> Response:
        return Response()

    def put(self, request: Request) -> Response:
        return Response(request.data)


@csrf_exempt
@throttle("batch", cost=lambda request: len(json.loads(request.body)))
def batch(request: HttpRequest) -> HttpResponse:
    tried.append("batch")
    return HttpResponse()


def priced(request: HttpRequest) -> HttpResponse:
    tried.append("priced")
    return HttpResponse()


urlpatterns = [path("api", Api.as_view(), name="api"), path("batch", batch)]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE
    tried.clear()


def left(rule: str, **options: Any) -> int | None:
    limiter = Limiter([Rule(rule, **{"rate": "1000/min", "algorithm": "fixed_window", **options})], stores.get_store())
    return limiter.peek("everyone").remaining


@pytest.mark.row("A28")
@BOTH
def test_a_batch_passes_whole_or_not_at_all(enforce: Enforce, client: Ask, settings: Any) -> None:
    settings.MIDDLEWARE = []
    enforce(batch={"rate": "10/min", "algorithm": "fixed_window", "key": "everyone"})

    def send(size: int) -> Any:
        data = json.dumps([0] * size)
        return client("/batch", method="post", data=data, content_type="application/json")

    assert [send(size).status_code for size in (6, 5, 4, 1)] == [200, 429, 200, 429]
    too_large = send(11)
    assert (too_large.status_code, "Retry-After" in too_large, len(tried)) == (429, False, 2)
    assert "more than the limit ever allows" in json.loads(too_large.content)["detail"]


@pytest.mark.row("A30")
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"method": "delete"}, 405),
        ({"headers": {"Accept": "image/png"}}, 406),
        ({"method": "put", "data": "{", "content_type": "application/json"}, 400),
        ({"method": "put", "data": "x", "content_type": "text/x"}, 415),
    ],
    ids=["405", "406", "400", "415"],
)
def test_a_flood_of_errors(enforce: Enforce, client: Ask, asked: dict[str, Any], status: int) -> None:
    """REST framework answers these before it throttles, so only the middleware covers them."""
    enforce(api={**PER_MINUTE, "scopes": ["api"]})
    statuses = [client("/api", **asked).status_code for _ in range(3 * LIMIT)]
    assert statuses == [status] * LIMIT + [429] * 2 * LIMIT


@pytest.mark.row("A33")
@pytest.mark.parametrize("slots", [False, True], ids=["rates", "rates-and-slots"])
def test_of_an_overload_redis_hears_a_fifth(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch, redis_url: str, slots: bool, figure: Callable[..., None]
) -> None:
    held = {"open": {"limit": 100, "algorithm": "concurrency", "events": ["inflight"]}} if slots else {}
    enforce(api=PER_MINUTE, **held)
    store = RedisStore(redis_url, deadline=5.0)
    count_in(store, monkeypatch)
    commands = commands_to(store, monkeypatch)
    ask = ThrottleMiddleware(lambda request: HttpResponse())
    statuses = [ask(RequestFactory().get("/api")).status_code for _ in range(10 * LIMIT)]
    asked = sum(isinstance(command, Decide) for command in commands)
    figure("questions to Redis", asked / len(statuses) * 100, "% of the requests")
    assert statuses.count(200) == LIMIT
    assert asked <= 0.2 * len(statuses)


BAD: list[Any] = [-1, float("nan"), float("inf"), 1.0, "5", "", True, None, [1]]


@pytest.mark.row("A35")
@BOTH
class TestCostTricks:
    """A35: what is no cost counts 1, one that is too large is refused, and no counter ever goes down by either."""

    @pytest.mark.parametrize("cost", BAD, ids=repr)
    def test_one_that_is_none(self, enforce: Enforce, cost: Any) -> None:
        enforce(api={"rate": "1000/min", "algorithm": "fixed_window", "key": "everyone"})
        for view in (throttle("api", cost=lambda request: cost)(priced), Costly.as_view(throttle_cost=cost)):
            assert view(RequestFactory().get("/")).status_code == 200
        assert left("api") == 998

    def test_one_that_is_too_large(self, enforce: Enforce) -> None:
        enforce(api={"rate": "1000/min", "algorithm": "fixed_window", "key": "everyone"})
        views = throttle("api", cost=2**63)(priced), Costly.as_view(throttle_cost=2**63)
        assert [view(RequestFactory().get("/")).status_code for view in views] == [429, 429]
        assert left("api") == 1000


class Costly(Api):
    throttle_cost: Any = 1
