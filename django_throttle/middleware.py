"""Django middleware: limits every request by the rules of its route, also requests that no view answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.apps import apps
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from django_throttle import rulebook
from django_throttle.call_facts import Facts
from django_throttle.exceptions import Refused
from django_throttle.http.request_state import facts_of, place_of, state_of
from django_throttle.http.serve import at_once, refusal_by_rules, refusal_of_error, serve
from django_throttle.identity import HttpWho

__all__ = ["ThrottleMiddleware"]

logger = logging.getLogger("django_throttle")
UNINSTALLED: Final = "'django_throttle' is not in INSTALLED_APPS: only rules in settings hold, unchecked; add it there"
GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class ThrottleMiddleware:
    """Applies the rules of a request's scope to it, of its rate and of requests in flight; sync and async.

    The scope is the ``throttle_scope`` of the view that the path resolves to, else the name of the route, else the
    route itself, never the raw path: ``//``, a suffix or another method do not escape it. Paths without a route
    have the scope "404". Stands after AuthenticationMiddleware, so that rules per user see one. A rule that a
    view's throttle class or decorator also matches is charged once. Refused, raised inside a view, becomes a 429.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        if not apps.is_installed("django_throttle"):
            logger.warning(UNINSTALLED)
        self.get_response: Any = get_response
        self.is_async = iscoroutinefunction(get_response)
        self._facts: Callable[[HttpRequest, HttpWho], Any] = _afacts if self.is_async else _facts
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view  # type: ignore[method-assign]  # not in a thread

    def __call__(self, request: HttpRequest) -> Any:
        who = HttpWho(request)
        facts, view = partial(self._facts, request, who), partial(self.get_response, request)
        answered = serve(request, who, facts, view, awaits=self.is_async)
        return answered if self.is_async else at_once(answered)

    def process_view(self, request: HttpRequest, *view: Any) -> Any:
        """Apply the rules of another scope too, where later middleware has changed the view of the request."""
        return at_once(self._refused_elsewhere(request)) if _goes_elsewhere(request) else None

    async def _aprocess_view(self, request: HttpRequest, *view: Any) -> Any:
        return await self._refused_elsewhere(request) if _goes_elsewhere(request) else None

    def _refused_elsewhere(self, request: HttpRequest) -> Coroutine[Any, Any, HttpResponseBase | None]:
        return refusal_by_rules(request, partial(self._facts, request, HttpWho(request)), awaits=self.is_async)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        """A refusal of what a view has called is a refusal of the request."""
        return refusal_of_error(request, error) if isinstance(error, Refused) else None


def _goes_elsewhere(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and not state_of(request).place.is_of(match)


def _facts(request: HttpRequest, who: HttpWho) -> Facts:
    place = state_of(request).place = place_of(request)
    return facts_of(request, place.scope, who, early=True)


async def _afacts(request: HttpRequest, who: HttpWho) -> Facts:
    found = _facts(request, who)
    if (rulebook.present() or await rulebook.acurrent()).asks_user(found):
        await who.aload()
    return found
