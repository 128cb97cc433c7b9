"""Attacks on HTTP entry points: no spelling, method, host, batch or cost is a way around a limit."""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import include, path, re_path, set_urlconf
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.views import APIView

from django_throttle import stores
from django_throttle.core import Rule
from django_throttle.core.commands import Decide
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.http.request_state import NO_ROUTE, route_request
from django_throttle.limiter import Limiter
from django_throttle.middleware import ThrottleMiddleware
from django_throttle.stores import RedisStore
from tests.doors import BOTH, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask
from tests.inside import commands_to, count_in

LIMIT = 7
ran: list[str] = []


def shop(request: HttpRequest, **_: Any) -> HttpResponse:
    ran.append(request.path)
    return HttpResponse("shop")


class Api(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]

    def get(self, request: Request, **_: Any) -> Response:
        ran.append(request.path)
        return Response("shop")


class Computed(View):
    @property
    def throttle_scope(self) -> str:
        return "known only to an instance"


# As forgiving as a route can be.
LOOSE = r"(?i)^/*{}/+(?P<name>[^/]+?)(?:\.(?P<format>json|xml))?(?:;[^/]*)?/*$"

urlpatterns = [
    path("status/<int:status>", lambda request, status: HttpResponse(status=status), name="status"),
    re_path(LOOSE.format("shop"), shop, name="shop"), re_path(LOOSE.format("desk"), Api.as_view(), name="desk"),
    path("strict/", shop, name="strict"), path("computed", Computed.as_view(), name="computed"),
    path("in/", include(([path("x", shop, name="x"), path("y", shop)], "space"))),
    *format_suffix_patterns([path("suffix", Api.as_view(), name="suffix")], allowed=["json"]),
]  # fmt: skip

SPELLINGS = re.findall(
    r"\S+",
    """
shop/1  Shop/1  SHOP/1  sHoP/1  shop/1/  shop/1//  shop/1///  shop//1  shop///1  /shop/1  //shop/1  ///shop//1//
shop/2  shop/02  shop/-1  shop/1.json  shop/1.xml  shop/1.JSON  shop/1.json/  SHOP//1.XML//  shop/1.txt  shop/..
shop/.  shop/1;x=1  shop/1;x=1;y=2  shop/1.json;x  shop/1%00  shop/1%0a  shop/ü  shop/%fc  shop/ﬁ  shop/𝟙  shop/1?x=1
shop/1?format=json  shop/1#part  shop/1\u200b  shop/e\u0301  shop/é  shop/١
""",
)
NOWHERE = ["shop", "shop/", "shop/a/b", "./shop/1", "shop/../shop/1", "shop\\1", "ѕhop/1", "strict"]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE
    settings.ALLOWED_HOSTS = ["*"]
    settings.APPEND_SLASH = True
    ran.clear()


@pytest.mark.row("A23")
@pytest.mark.parametrize("door", ["shop", "desk"])
def test_no_spelling_of_a_path_escapes(enforce: Enforce, client: Ask, settings: Any, door: str, figure: Any) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE if door == "shop" else []
    enforce(api={"rate": f"{LIMIT}/min", "scopes": [door], "key": "everyone"})
    letters = str.maketrans("shopSHOP", door + door.upper())
    addressed = [re.sub("(?i)shop", lambda found: found[0].translate(letters), one, count=1) for one in SPELLINGS]
    statuses = [status(client, one) for one in addressed]
    reached = [one for one in statuses if one != 404]
    figure(f"calls, limit {LIMIT}, by {len(reached)} spellings,", len(ran))
    assert len(reached) >= 30
    assert reached == [200] * LIMIT + [429] * (len(reached) - LIMIT)
    assert len(ran) == LIMIT


def status(client: Ask, where: str) -> int:
    # Of a whole address, as a path that begins with // would be taken for a host.
    return int(client("http://testserver/" + quote(where, safe="/;?=#%")).status_code)


@pytest.mark.row("A30")
def test_what_leads_nowhere_has_a_scope_of_its_own(enforce: Enforce, client: Ask) -> None:
    """A30: floods of what no view answers."""
    enforce(probes={"rate": f"{LIMIT}/min", "scopes": [NO_ROUTE], "key": "everyone"})
    statuses = [status(client, where) for where in NOWHERE * 2]
    assert statuses == [404] * LIMIT + [429] * (len(statuses) - LIMIT)
    assert ran == []


METHODS = ["get", "head", "options", "post", "put", "patch", "delete", "trace"]
TRICKS: list[dict[str, Any]] = [
    {"headers": {"X-HTTP-Method-Override": "PUT"}}, {"headers": {"X-HTTP-Method": "DELETE"}},
    {"headers": {"X-Method-Override": "get"}}, {"query_params": {"_method": "PATCH"}},
]  # fmt: skip


@pytest.mark.row("A22")
@pytest.mark.parametrize("door", ["shop", "desk"])
def test_no_method_is_a_way_around(enforce: Enforce, client: Ask, settings: Any, door: str) -> None:
    """A22: a rule that says nothing of methods covers them all, those that a view does not know included."""
    settings.MIDDLEWARE = site.MIDDLEWARE if door == "shop" else []
    enforce(api={"rate": f"{LIMIT}/min", "scopes": [door], "key": "everyone"})
    answers = [client(f"/{door}/1", method=method) for method in METHODS]
    answers += [client(f"/{door}/1", **trick) for trick in TRICKS]
    refused = [answer.status_code == 429 for answer in answers]
    assert refused == [False] * LIMIT + [True] * (len(answers) - LIMIT)


@pytest.mark.row("A24")
def test_a_host_is_no_part_of_it(enforce: Enforce, client: Ask) -> None:
    enforce(api={"rate": "3/min", "scopes": ["shop"], "key": "everyone"})
    hosts = ["a.com", "A.COM.", "a.com:8000", "b.org", "[::1]:80"]
    assert [client("/shop/1", headers={"host": host}).status_code for host in hosts] == [200] * 3 + [429] * 2


@pytest.mark.parametrize(
    ("where", "scope"),
    [
        *(("/shop/1", "shop"), ("/in/x", "space:x"), ("/in/y", "in/y"), ("/computed", "computed")),
        *(("/suffix.json", "suffix"), ("/none", NO_ROUTE)),
    ],
)
def test_the_scope_is_the_name_of_the_route_else_the_route(where: str, scope: str) -> None:
    assert route_request(RequestFactory().get(where)).scope == scope


def test_a_urlconf_that_only_links_are_made_by(settings: Any) -> None:
    set_urlconf("tests.entry_points.site")  # Django's handler goes by that of the request, or the setting
    try:
        assert route_request(RequestFactory().get("/middleware/ok")) == (NO_ROUTE, None)
    finally:
        set_urlconf(None)


def statuses(wanted: list[int], method: str = "GET") -> list[int]:
    return [Client().generic(method, f"/status/{status}").status_code for status in wanted]


@BOTH
@pytest.mark.parametrize("method", ["query", "VERSION-CONTROL"])
def test_a_rule_names_any_method(enforce: Enforce, method: str) -> None:
    enforce(api={"rate": "1/min", "key": "ip", "methods": [method]})
    assert statuses([200] * 3, method.upper()) == [200, 429, 429]
    assert statuses([200] * 3, "MOVE") == [200] * 3


@BOTH
@pytest.mark.parametrize(
    ("count_on", "passed"), [(["4xx"], 4), ([404, "5xx"], 3), (["5xx"], 5), ([401], 8), (["4xx", "5xx"], 3)]
)
def test_a_rule_names_statuses_and_their_classes(enforce: Enforce, count_on: list[Any], passed: int) -> None:
    enforce(api={"rate": "2/min", "key": "ip", "count_on": count_on})
    asked = [200, 404, 500, 403, 503, 404, 200, 201]
    assert statuses(asked) == asked[:passed] + [429] * (8 - passed)


FLOOD = 20
PER_MINUTE: dict[str, Any] = {"rate": f"{FLOOD}/min", "algorithm": "sliding_log", "key": "everyone"}


class JsonApi(APIView):
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
    ran.append("batch")
    return HttpResponse()


def priced(request: HttpRequest) -> HttpResponse:
    ran.append("priced")
    return HttpResponse()


urlpatterns += [path("api", JsonApi.as_view(), name="api"), path("batch", batch)]


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
    assert (too_large.status_code, "Retry-After" in too_large, len(ran)) == (429, False, 2)
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
    enforce(api={**PER_MINUTE, "scopes": ["api"]})
    statuses = [client("/api", **asked).status_code for _ in range(3 * FLOOD)]
    assert statuses == [status] * FLOOD + [429] * 2 * FLOOD


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
    statuses = [ask(RequestFactory().get("/api")).status_code for _ in range(10 * FLOOD)]
    decisions = sum(isinstance(command, Decide) for command in commands)
    figure("questions to Redis", decisions / len(statuses) * 100, "% of the requests")
    assert statuses.count(200) == FLOOD
    assert decisions <= 0.2 * len(statuses)


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


class Costly(JsonApi):
    throttle_cost: Any = 1
