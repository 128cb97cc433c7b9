"""The Django door: every request under the rules of its route, those included that no view answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from django_throttle import limiter, rulebook
from django_throttle.exceptions import Refused
from django_throttle.facts import Facts, Who
from django_throttle.http.body import meter, size_of
from django_throttle.http.finalize import aabandon, abandon, afinish, finish
from django_throttle.http.refusal import refusal
from django_throttle.http.request_state import (
    EVENTS,
    attend,
    charged,
    keep,
    method_of,
    scope_of,
    scope_of_match,
    visit_of,
)
from django_throttle.identity import HttpWho

__all__ = ["ThrottleMiddleware"]

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class ThrottleMiddleware:
    """Puts each request under the rules of its scope: what it may do, and how many of it may be open; sync and async.

    The scope is the ``throttle_scope`` of the view that the path resolves to, else the name of the route, else the
    route itself, never the raw path: ``//``, a suffix or another method do not escape it. Paths without a route
    have the scope "404". Stands after AuthenticationMiddleware, so that rules per user see one. A rule that a
    view's throttle class or decorator also matches is charged once. Refused, raised inside a view, becomes a 429.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response: Any = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view  # type: ignore[method-assign]  # not in a thread

    def __call__(self, request: HttpRequest) -> Any:
        if self.is_async:
            return self._acall(request)
        who = HttpWho(request)
        attend(request, who)
        try:
            facts = _facts(request, who)
            decision = limiter.decide(facts)
            keep(request, decision)
            meter(request, decision, facts)
            response = self.get_response(request) if decision.allowed else refusal(request, decision)
        except BaseException as error:
            abandon(request, error)
            raise
        return finish(request, response)

    async def _acall(self, request: HttpRequest) -> Any:
        who = HttpWho(request)
        attend(request, who)
        try:
            facts = _facts(request, who)
            if (await rulebook.acurrent()).asks_user(facts):
                await who.aload()
            decision = await limiter.adecide(facts)
            keep(request, decision)
            meter(request, decision, facts)
            response = await self.get_response(request) if decision.allowed else refusal(request, decision)
        except BaseException as error:
            await aabandon(request, error)
            raise
        return await afinish(request, response)

    def process_view(self, request: HttpRequest, *view: Any) -> Any:
        """Where middleware behind this one has changed where the request goes, the rules of that scope apply too."""
        if not _goes_elsewhere(request):
            return None
        facts = _facts(request, HttpWho(request))
        decision = limiter.decide(facts)
        keep(request, decision)
        meter(request, decision, facts)
        return None if decision.allowed else refusal(request, decision)

    async def _aprocess_view(self, request: HttpRequest, *view: Any) -> HttpResponseBase | None:
        if not _goes_elsewhere(request):
            return None
        facts = _facts(request, await HttpWho.aread(request))
        decision = await limiter.adecide(facts)
        keep(request, decision)
        meter(request, decision, facts)
        return None if decision.allowed else refusal(request, decision)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """A refusal of what a view has called is a refusal of the request."""
        if not isinstance(error, Refused):
            return None
        keep(request, error.decision)
        return refusal(request, error.decision)


def _facts(request: HttpRequest, who: Who) -> Facts:
    done, method = charged(request), method_of(request)
    scope = visit_of(request).scope = scope_of(request)
    return Facts(scope, EVENTS, who, charged=done, method=method, early=True, size=size_of(request))


def _goes_elsewhere(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and scope_of_match(match) != visit_of(request).scope
