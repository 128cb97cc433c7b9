"""Views, unthrottled and throttled, by us and by others: what a door adds to a request."""

from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import async_only_middleware, method_decorator
from redis import Redis
from redis import asyncio as aioredis
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle, UserRateThrottle
from rest_framework.views import APIView

from django_throttle.drf import RuleThrottle
from tests.lab.benchmarks.ours import OF_A_SITE
from tests.lab.benchmarks.player import Play, another, in_turn, one_by_one
from tests.lab.benchmarks.settings import RATES


class DrfThrottle(UserRateThrottle):
    scope = "bench"
    rate = RATES[0]


class PingThrottle(BaseThrottle):
    client = Redis.from_url(settings.CACHES["default"]["LOCATION"])

    def allow_request(self, request: Request, view: APIView) -> bool:
        return bool(self.client.ping())


def ping_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def answer(request: HttpRequest) -> Any:
        PingThrottle.client.ping()
        return get_response(request)

    return answer


@async_only_middleware
def ping_middleware_async(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    client = aioredis.Redis.from_url(settings.CACHES["default"]["LOCATION"])

    async def answer(request: HttpRequest) -> Any:
        await client.ping()
        return await get_response(request)

    return answer


THROTTLES: dict[str, list[type[BaseThrottle]]] = {
    "none": [], "ours": [RuleThrottle], "drf": [DrfThrottle], "ping": [PingThrottle],
}  # fmt: skip
MIDDLEWARE = {
    "ours": "django_throttle.middleware.ThrottleMiddleware",
    "ping": f"{__name__}.ping_middleware",
    "ping async": f"{__name__}.ping_middleware_async",
}


def guard(name: str) -> Any:
    from django_ratelimit.decorators import ratelimit  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from django_smart_ratelimit.decorator import rate_limit  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if name == "smart":
        return rate_limit(key=lambda request, *_: str(request.user.pk), rate=RATES[0])
    return ratelimit(group="bench", key=lambda _, request: str(request.user.pk), rate=RATES[0], method="GET")


def view(url: str, throttle: str, rules: int = 1, others: int = 0) -> Play:
    """A request of a user who is logged in, straight to a REST framework view; no middleware, no rendering."""
    under(rules, others)

    class View(APIView):
        authentication_classes = ()
        throttle_classes = THROTTLES.get(throttle, ())
        throttle_scope = "bench"

        def get(self, request: Request) -> Response:
            return Response()

        def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
            found = super().initialize_request(request, *args, **kwargs)
            found.user = request.user
            return found

    if throttle not in THROTTLES:
        View.get = method_decorator(guard(throttle))(View.get)  # type: ignore[method-assign]
    served, call = View.as_view(), _by(_wsgi("/"))

    def answered(ident: str) -> Any:
        return served(call(ident))

    _check(answered("first"), limited=throttle == "ours")
    return one_by_one(answered)


def through_middleware(url: str, throttle: str, rules: int = 1) -> Play:
    """A request through Django's handler to a view that does nothing, past our middleware or past none."""
    handler, call = _handler(throttle, rules, lambda request: HttpResponse()), _by(_wsgi("/bench"))

    def answered(ident: str) -> Any:
        return handler.get_response(call(ident))

    _check(answered("first"), limited=throttle == "ours")
    return one_by_one(answered)


def through_middleware_async(url: str, throttle: str, rules: int = 1) -> Play:
    async def nothing(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    handler = _handler("ping async" if throttle == "ping" else throttle, rules, nothing, is_async=True)
    call = _by(ASGIRequest(ASGI, BytesIO()))

    async def answered(ident: str) -> None:
        response = await handler.get_response_async(call(ident))
        _check(response, limited=throttle == "ours")

    return in_turn(answered)


# As servers make them: a process that has Django's test client loaded is asked whether it runs tests, at each call.
ASGI = {"type": "http", "method": "GET", "path": "/bench", "headers": [], "client": ("127.0.0.1", 50_000)}


def _wsgi(path: str) -> WSGIRequest:
    given = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "127.0.0.1", "wsgi.input": BytesIO()}
    return WSGIRequest(given)


def under(rules: int, others: int = 0) -> None:
    """Put so many rules in force, and others of other scopes, in a process that has not asked for any yet."""
    chosen = {
        name: {**options, "scopes": ["bench"], "key": "user"} for name, options in list(OF_A_SITE.items())[:rules]
    }
    elsewhere = {f"other {number}": {"rate": "10/s", "scopes": [f"area{number}:*"]} for number in range(others)}
    mine = {"PREFIX": f"b{rules}", "RULES": {**chosen, **elsewhere}}  # as ours._store
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **mine}


def _handler(throttle: str, rules: int, served: Callable[..., Any], *, is_async: bool = False) -> BaseHandler:
    under(rules)
    settings.MIDDLEWARE = [MIDDLEWARE[throttle]] if throttle in MIDDLEWARE else []
    settings.ROOT_URLCONF = (path("bench", served, name="bench"),)
    (handler := BaseHandler()).load_middleware(is_async=is_async)
    return handler


def _by(pristine: Any) -> Callable[[str], Any]:
    users = {}

    def request(ident: str) -> Any:
        found = another(pristine)
        if ident not in users:
            users[ident] = SimpleNamespace(is_authenticated=True, is_active=True, pk=ident)
        found.user = users[ident]
        return found

    return request


def _check(response: Any, *, limited: bool) -> None:
    assert response.status_code == 200
    assert ("RateLimit" in response) == limited
