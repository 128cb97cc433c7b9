"""Views, unthrottled and throttled, by us and by others: what a door adds to a request."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle, UserRateThrottle
from rest_framework.views import APIView

from django_throttle.drf import RuleThrottle
from tests.benchmarks.ours import OF_A_SITE
from tests.benchmarks.play import another, in_turn, one_by_one
from tests.benchmarks.player import Play
from tests.benchmarks.settings import RATES


class DrfThrottle(UserRateThrottle):
    scope = "bench"
    rate = RATES[0]


THROTTLES: dict[str, list[type[BaseThrottle]]] = {"none": [], "ours": [RuleThrottle], "drf": [DrfThrottle]}


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
        from tests.benchmarks.guards import guard  # what only the benchmark installs

        View.get = guard(throttle, View.get)  # type: ignore[method-assign]
    served, call = View.as_view(), _by(RequestFactory().get("/"))

    def answered(ident: str) -> Any:
        return served(call(ident))

    _check(answered("first"), limited=throttle == "ours")
    return one_by_one(answered)


def through_middleware(url: str, throttle: str, rules: int = 1) -> Play:
    """A request through Django's handler to a view that does nothing, past our middleware or past none."""
    _handled_by(throttle, rules, lambda request: HttpResponse())
    (handler := BaseHandler()).load_middleware()
    call = _by(RequestFactory().get("/bench"))

    def answered(ident: str) -> Any:
        return handler.get_response(call(ident))

    _check(answered("first"), limited=throttle == "ours")
    return one_by_one(answered)


def through_middleware_async(url: str, throttle: str, rules: int = 1) -> Play:
    """The same on an event loop, with a view that is a coroutine."""

    async def nothing(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    _handled_by(throttle, rules, nothing)
    (handler := BaseHandler()).load_middleware(is_async=True)
    call = _by(AsyncRequestFactory().get("/bench"))

    async def answered(ident: str) -> None:
        response = await handler.get_response_async(call(ident))
        _check(response, limited=throttle == "ours")

    return in_turn(answered)


def under(rules: int, others: int = 0) -> None:
    """Put so many rules in force, and others of other scopes, in a process that has not asked for any yet."""
    chosen = {
        name: {**options, "scopes": ["bench"], "key": "user"} for name, options in list(OF_A_SITE.items())[:rules]
    }
    elsewhere = {f"other {number}": {"rate": "10/s", "scopes": [f"area{number}:*"]} for number in range(others)}
    mine = {"PREFIX": f"b{rules}", "RULES": {**chosen, **elsewhere}}  # as ours._store
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **mine}


def _handled_by(throttle: str, rules: int, served: Callable[..., Any]) -> None:
    under(rules)
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"] if throttle == "ours" else []
    settings.ROOT_URLCONF = (path("bench", served, name="bench"),)


def _by(pristine: Any) -> Callable[[str], Any]:
    """A request of the user of this name."""
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
