"""Django middleware that limits every request by the rules of its route, even a request that no view answers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from django_throttle.core import Decision
from django_throttle.core.io import run
from django_throttle.exceptions import Refused
from django_throttle.http import plain_request
from django_throttle.http.refusal import refusal
from django_throttle.http.request_state import RequestState, route_request, state_of, view_cost
from django_throttle.http.serve import refusal_of_error, serve
from django_throttle.identity import RequestCaller
from django_throttle.identity.site_functions import cost_of

__all__ = ["ThrottleMiddleware"]

logger = logging.getLogger("django_throttle")
UNINSTALLED: Final = "'django_throttle' is not in INSTALLED_APPS: only rules in settings hold, unchecked; add it there"
GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class ThrottleMiddleware:
    """Apply the rules of a request's scope: rates, and slots of requests in flight. Sync and async.

    The scope is the ``throttle_scope`` of the view, else the name of the route, else the route. It is never the raw
    path, so ``//``, a suffix or another method do not escape a rule. Paths without a route have the scope "404".

    The middleware stands below AuthenticationMiddleware, so that rules per user see the user. A rule is charged once,
    even if the view's throttle class or decorator also matches it. Refused, raised inside a view, becomes a 429.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        if not apps.is_installed("django_throttle"):
            logger.warning(UNINSTALLED)
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        self._decide: Callable[[HttpRequest, RequestCaller, RequestState], object] = (
            _adecide if self.is_async else _decide
        )
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view  # type: ignore[method-assign]  # not in a thread

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        coroutine = serve(request, RequestCaller(request), self._decide, self.get_response, awaits=self.is_async)
        return coroutine if self.is_async else run(coroutine)

    def process_view(self, request: HttpRequest, *view: object) -> HttpResponse | Awaitable[HttpResponse | None] | None:
        """Apply the rules of another scope too if later middleware has changed the view of the request."""
        state, match = state_of(request), request.resolver_match
        if match is None or state.routed.has_scope_of(match):
            return None
        return _refusal(request, _decide(request, RequestCaller(request), state))

    async def _aprocess_view(self, request: HttpRequest, *view: object) -> HttpResponse | None:
        state, match = state_of(request), request.resolver_match
        if match is None or state.routed.has_scope_of(match):
            return None
        return _refusal(request, await _adecide(request, RequestCaller(request), state))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """Answer Refused by the innermost handler. A refusal of a call inside a view is a refusal of the request."""
        if not isinstance(error, Refused):
            return None
        answer: HttpResponseBase | None = None
        if "rest_framework.views" in sys.modules and request.resolver_match is not None:
            from django_throttle.drf.rule_throttle import answer_of_view  # as REST framework is optional

            answer = answer_of_view(request, error)
        if answer is None:
            return refusal_of_error(request, error)
        state_of(request).note(error.decision)
        return answer


def _refusal(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    return None if decision.allowed else refusal(request, decision)


def _scope_and_cost(request: HttpRequest, state: RequestState) -> tuple[str, int]:
    """Return scope and cost of a request. Set its ``resolver_match`` early, because cost functions read it."""
    routed = state.routed = route_request(request)
    if request.resolver_match is None:
        request.resolver_match = routed.match
    cost = 1 if routed.match is None else view_cost(routed.match.func)
    if cost != 1:
        cost = cost_of(cost, request, call_kind="request", reraise=(SynchronousOnlyOperation,))
    return routed.scope, cost


def _decide(request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
    scope, cost = _scope_and_cost(request, state)
    return plain_request.decide(request, state, scope, caller, cost)


async def _adecide(request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
    try:
        scope, cost = _scope_and_cost(request, state)
    except SynchronousOnlyOperation:
        scope, cost = await sync_to_async(_scope_and_cost)(request, state)
    return await plain_request.adecide(request, state, scope, caller, cost)
