"""The Django door: every request under the rules of its route, those included that no view answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve

from django_throttle import limiter
from django_throttle.core import Decision
from django_throttle.facts import Facts
from django_throttle.identity import HttpWho
from django_throttle.requests import charged, keep, refusal

__all__ = ["ThrottleMiddleware"]

NO_ROUTE: Final = "404"

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class ThrottleMiddleware:
    """Puts each request under the rules of event ``request`` whose scope is its route; sync and async.

    The scope is the name of the route that the path resolves to, else the route itself, never the raw path:
    ``//``, a suffix or another method do not escape it. Paths without a route have the scope "404". Stands
    after AuthenticationMiddleware, so that rules per user see one. A rule that a view's throttle class or
    decorator also matches is charged once.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self.is_async:
            return self._acall(request)
        decision = limiter.decide(_facts(request, HttpWho(request)))
        return _refused(request, decision) or self.get_response(request)

    async def _acall(self, request: HttpRequest) -> Any:
        decision = await limiter.adecide(_facts(request, await HttpWho.aread(request)))
        return _refused(request, decision) or await self.get_response(request)  # type: ignore[misc]


def _facts(request: HttpRequest, who: HttpWho) -> Facts:
    return Facts(_scope(request), ("request",), who, charged=charged(request))


def _scope(request: HttpRequest) -> str:
    try:
        match = resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return NO_ROUTE
    return match.view_name if match.url_name else match.route


def _refused(request: HttpRequest, decision: Decision) -> HttpResponseBase | None:
    keep(request, decision)
    return None if decision.allowed else refusal(decision)
