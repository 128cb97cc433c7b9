"""What the order of middleware changes, on the page about it, and what the checks say of it."""

from typing import Any

import pytest
from django.core.cache import cache
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.middleware.http import ConditionalGetMiddleware
from django.test import Client, modify_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page
from rest_framework.views import APIView

from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.middleware import ThrottleMiddleware
from tests.doors import Enforce

OURS = "django_throttle.middleware.ThrottleMiddleware"
CORS = "corsheaders.middleware.CorsMiddleware"
CONDITIONAL = "django.middleware.http.ConditionalGetMiddleware"
UPDATE, FETCH = (f"django.middleware.cache.{name}CacheMiddleware" for name in ("Update", "FetchFrom"))


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"page" * 200, content_type="text/plain")


urlpatterns = [path("", page, name="page")]


@pytest.fixture
def listed(settings: Any) -> Any:
    settings.CORS_ALLOW_ALL_ORIGINS = True
    cache.clear()

    def put(*middleware: str) -> None:
        settings.MIDDLEWARE = list(middleware)

    yield put
    cache.clear()


FAULTS = {
    "conditional": "makes 304 of 200", "cors": "above CorsMiddleware", "cache": "below FetchFromCacheMiddleware",
    "page": "below cache_page",
}  # fmt: skip


def warnings(settings: Any, rules: dict[str, Any]) -> list[str]:
    settings.DJANGO_THROTTLE = {"RULES": rules}
    found = run_checks(tags=["django_throttle"])
    messages = [message.msg for message in found if message.id == "django_throttle.W040"]
    return [middleware for message in messages for middleware, words in FAULTS.items() if words in message]


@pytest.mark.parametrize("above", [True, False])
def test_a_304_is_given_back_only_where_it_is_seen(enforce: Enforce, listed: Any, settings: Any, above: bool) -> None:
    listed(*([CONDITIONAL, OURS] if above else [OURS, CONDITIONAL]))
    rules = {"api": {"rate": "2/hour", "key": "ip", "refund_on": ["304"], "algorithm": "fixed_window"}}
    enforce(**rules)
    client = Client()
    tag = client.get("/")["ETag"]
    answers = [client.get("/", headers={"If-None-Match": tag}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == ([304, 429, 429] if above else [304] * 3)
    assert ("RateLimit" in answers[0]) == (not above), "Django leaves it out of a 304"
    assert (
        warnings(settings, rules)
        == warnings(settings, {"api": {"rate": "1/s", "count_on": [200]}})
        == ["conditional"] * above
    )
    assert warnings(settings, {"api": {"rate": "1/s"}}) == []


@pytest.mark.parametrize("above", [True, False])
def test_a_preflight_counts_and_a_refusal_has_no_cors_fields_below_which_it_is_not(
    enforce: Enforce, listed: Any, settings: Any, above: bool
) -> None:
    listed(*([CORS, OURS] if above else [OURS, CORS]))
    enforce(api={"rate": "2/hour", "key": "ip", "algorithm": "fixed_window"})
    client = Client(headers={"Origin": "https://shop.example"})
    preflight = client.options("/", headers={"Access-Control-Request-Method": "GET"})
    assert preflight.status_code == 200
    statuses = [client.get("/").status_code for _ in range(3)]
    assert statuses == ([200, 200, 429] if above else [200, 429, 429])
    assert ("Access-Control-Allow-Origin" in client.get("/")) == above
    assert warnings(settings, {"api": {"rate": "1/s"}}) == ([] if above else ["cors"])


class Shown(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return page(request)


class Listed(APIView):
    throttle_classes = (RuleThrottle,)

    def get(self, request: Any) -> HttpResponse:
        return page(request)


def around(kind: type, decorator: Any, name: str) -> Any:
    return method_decorator(decorator, name=name)(type("Around", (kind,), {})).as_view()


LIMITED, CACHED = throttle("api"), cache_page(60)
LIMITED_CLASS = throttle("api")(type("Limited", (Shown,), {}))


@pytest.mark.parametrize(
    ("view", "middleware", "own"),
    [
        (page, [UPDATE, OURS, FETCH], True),
        (page, [UPDATE, FETCH, OURS], False),
        (CACHED(LIMITED(page)), [], False),
        (LIMITED(CACHED(page)), [], True),
        (CACHED(LIMITED_CLASS.as_view()), [], False),
        (around(Shown, [CACHED, LIMITED], "get"), [], False),
        (around(Shown, [LIMITED, CACHED], "dispatch"), [], True),
        (around(LIMITED_CLASS, CACHED, "get"), [], True),
        (CACHED(Listed.as_view()), [], False),
        (around(Listed, CACHED, "dispatch"), [], False),
        (around(Listed, CACHED, "get"), [], True),
        (CACHED(Listed.as_view()), [OURS], True),
    ],
)
def test_a_copy_from_a_cache_counts_and_has_the_fields_of_its_own_client(
    enforce: Enforce, listed: Any, settings: Any, view: Any, middleware: list[str], own: bool
) -> None:
    listed(*middleware)
    settings.ROOT_URLCONF = (path("", view, name="page"),)
    enforce(api={"rate": "10/hour", "key": "ip", "algorithm": "fixed_window"})
    answers = [Client(REMOTE_ADDR=f"192.0.2.{number}").get("/") for number in (1, 2, 2)]
    left = [answer["RateLimit"].partition(";t")[0] for answer in answers]
    assert left == [f'"api";r={units}' for units in ((9, 9, 8) if own else (9, 9, 9))]
    assert warnings(settings, {"api": {"rate": "1/s"}}) == ([] if own else ["cache" if middleware else "page"])


@modify_settings(INSTALLED_APPS={"remove": "django_throttle"})
def test_without_the_app_it_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    ThrottleMiddleware(page)
    assert "'django_throttle' is not in INSTALLED_APPS" in caplog.text


class OwnConditional(ConditionalGetMiddleware):
    pass


@pytest.mark.parametrize(
    ("middleware", "told"),
    [
        ([f"{__name__}.OwnConditional", OURS], ["conditional"]),
        ([OURS, f"{__name__}.OwnConditional"], []),
        (["django.middleware.cache.CacheMiddleware", OURS], ["cache"]),
    ],
)
def test_classes_of_their_kinds_count_too(listed: Any, settings: Any, middleware: list[str], told: list[str]) -> None:
    listed(*middleware)
    assert warnings(settings, {"api": {"rate": "1/s", "refund_on": [304]}}) == told


class Reading:
    def __init__(self, get_response: Any) -> None:
        self.answer, self.tenant, self.kinds = get_response, "its own", ()


class Tenants(Reading):
    def __call__(self, request: Any) -> Any:
        request.tenant, request.domain = object(), "acme.example"
        return self.answer(request)


def own_tenants(get_response: Any) -> Any:
    def answer(request: Any) -> Any:
        request.tenant = object()
        return get_response(request)

    return answer


def tenant_of_request(request: Any) -> object:
    return request.tenant.pk


@pytest.mark.parametrize("tenant", ["tenant.pk", f"{__name__}.tenant_of_request"])
@pytest.mark.parametrize("name", ["Tenants", "own_tenants"])
def test_what_sets_the_tenant_stands_above(listed: Any, settings: Any, tenant: str, name: str) -> None:
    def told(tenant: str, *middleware: str) -> list[str]:
        listed(*(each if each == OURS else f"{__name__}.{each}" for each in middleware))
        settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "1/min", "key": "tenant"}}, "TENANT": tenant}
        return [message.msg for message in run_checks(tags=["django_throttle"]) if "what TENANT reads" in message.msg]

    (message,) = told(tenant, OURS, name)
    assert message.startswith(f"ThrottleMiddleware stands above {__name__}.{name}, which sets what TENANT reads")
    assert told(tenant, name, OURS) == told(tenant, name, OURS, name) == told("user.pk", OURS, name) == []
    assert told(tenant, OURS, "Reading") == []
