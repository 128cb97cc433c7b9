"""``RuleThrottle``, its base class, and the finish of requests inside REST framework's views.

A view with such a throttle finishes its request unless another entry point does: header fields, refunds, slots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from math import ceil
from typing import TYPE_CHECKING, Any, NoReturn

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from rest_framework import throttling
from rest_framework.request import Request

from django_throttle import limiter, rulebook
from django_throttle.core import Decision
from django_throttle.exceptions import Refused
from django_throttle.http import plain_request
from django_throttle.http.drf_exceptions import exception_of, throttled_error
from django_throttle.http.finalize import (
    afinish,
    afinish_failed,
    arelease,
    finish,
    finish_failed,
    run_soon,
    status_of_error,
)
from django_throttle.http.problem_details import is_too_large
from django_throttle.http.request_state import (
    RequestState,
    django_request,
    scope_and_cost,
    state_of,
)
from django_throttle.http.request_throttle import RequestThrottle
from django_throttle.http.retry_after import retry_seconds
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Caller
from django_throttle.identity.site_functions import cost_of, own_function
from django_throttle.runtime import is_on_event_loop, spawn

if TYPE_CHECKING:
    # REST framework imports the default throttle classes while it imports its views.
    from rest_framework.response import Response
    from rest_framework.views import APIView


def _raise_throttled(request: Request, wait: float | None) -> NoReturn:
    """Raise Throttled, as a view's own ``throttled`` does."""
    raise throttled_error(None if wait is None else ceil(wait))


@lru_cache(maxsize=512)
def _has_default_throttled(view: type[object]) -> bool:
    from rest_framework.views import APIView  # a circular import, see above

    return getattr(view, "throttled", None) is APIView.throttled


def finish_in_view(view: Any, request: HttpRequest, caller: Caller, state: RequestState) -> None:
    """Wrap the view so that headers, refunds and slots are handled when it returns or raises.

    If another entry point already does this, wrap only the view's ``handle_exception``: it answers Refused of an inner
    call by the site's EXCEPTION_HANDLER. An asynchronous view makes its response on the event loop without awaiting, so
    its request is finished as soon as its method has returned.
    """
    if "throttle" not in request.__dict__:
        request.__dict__["throttle"] = RequestThrottle(state)
    if not hasattr(view, "finalize_response"):
        return
    finishes = state.become_finisher(caller)
    handle: Any = view.handle_exception
    if type(getattr(handle, "__self__", None)) is not _Finisher:
        finisher = _Finisher(request, state, handle, view.finalize_response)
        view.handle_exception = finisher.handle_exception if finishes else finisher.handle_refusal
        if finishes:
            view.finalize_response = finisher.finalize_response
    kind: Any = type(view)
    if finishes and _is_async(kind):
        _finish_in_method(view, str(request.method).lower(), request)


def finish_in_running_view() -> None:
    """Wrap the REST framework view that runs in this thread, if any, so that it answers Refused. See ``_Finisher``."""
    from rest_framework.views import APIView  # a circular import, see above

    frame = sys._getframe(1)
    while frame is not None:
        view = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if isinstance(view, APIView) and isinstance(request := getattr(view, "request", None), Request):
            inner = django_request(request)
            finish_in_view(view, inner, RequestCaller(request), state_of(inner))
            return
        frame = frame.f_back  # type: ignore[assignment]


def connect() -> None:
    """Register ``finish_in_running_view`` to be called before Refused is raised."""
    limiter.before_refusals.add(finish_in_running_view)


class _Finisher:
    """Replacements for methods of a view, which finish the request in the view that answers it.

    If the view is called with the same request again, that is another call.
    """

    __slots__ = ("finalize", "handle", "request", "state")

    def __init__(
        self,
        request: HttpRequest,
        state: RequestState,
        handle: Callable[..., Response],
        finalize: Callable[..., Response],
    ) -> None:
        self.request, self.state, self.handle, self.finalize = request, state, handle, finalize

    def finalize_response(self, *args: object, **kwargs: object) -> Response:
        """Return the view's response. Refund and release at once, or in a task if an event loop runs."""
        try:
            response = self.finalize(*args, **kwargs)
        except BaseException as error:
            _finish_failed(self.request, error)
            raise
        if finish_work := finish(self.request, response, self.state):
            run_soon(finish_work)
        self.state.forget_charges()
        return response

    def handle_exception(self, error: Exception) -> Response:
        """Return the response to an error, see ``handle_refusal``. If the handler raises, finish the request."""
        try:
            return self.handle_refusal(error)
        except BaseException as raised:
            _finish_failed(self.request, raised)
            raise

    def handle_refusal(self, error: Exception) -> Response:
        """Return the response to an error. Refused, if the view did not catch it, is a refusal of the request."""
        if isinstance(error, Refused):
            self.state.note(error.decision)
            error = exception_of(error.decision)
        return self.handle(error)


def answer_of_view(request: HttpRequest, error: Refused) -> Response | None:
    """Return the response to a refusal by the exception handler of the request's REST framework view.

    The view itself did not handle the error, because it does not know Refused. Return None for other views.
    """
    match: Any = request.resolver_match
    kind: Any = getattr(match.func, "cls", None)
    if not hasattr(kind, "get_exception_handler"):
        return None
    view: APIView = kind(**match.func.initkwargs)
    if (actions := getattr(match.func, "actions", None)) is not None:
        view.action_map = actions  # type: ignore[attr-defined]  # of viewsets
    view.setup(request, *match.args, **match.kwargs)
    view.args, view.kwargs = match.args, match.kwargs
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    view.headers = view.default_response_headers
    response = view.handle_exception(exception_of(error.decision))
    return view.finalize_response(view.request, response, *match.args, **match.kwargs)


def _finish_failed(request: HttpRequest, error: BaseException) -> None:
    """Finish a request without a response, at once, or in a task if an event loop runs, which must not be blocked."""
    state, status = state_of(request), status_of_error(error)
    if (state.slots or state.counts_some or state.has_refused) and is_on_event_loop():
        spawn(sync_to_async(finish_failed)(request, status))
    else:
        finish_failed(request, status)


@lru_cache(maxsize=512)
def _is_async(view: type[object]) -> bool:
    return bool(getattr(view, "view_is_async", False))  # cached, because Django computes it at each access


def _finish_in_method(view: object, method: str, request: HttpRequest) -> None:
    handler = getattr(view, method, None)
    if handler is None:
        return
    async_handler = handler if iscoroutinefunction(handler) else sync_to_async(handler)

    @wraps(handler)
    async def finishing_handler(*args: object, **kwargs: object) -> object:
        try:
            return await afinish(request, await async_handler(*args, **kwargs))
        except Exception:  # the view will make a response from it, whose status decides the refunds
            await arelease(request)
            raise
        except BaseException as error:
            await afinish_failed(request, status_of_error(error))
            raise

    setattr(view, method, finishing_handler)


class DecidedThrottle(throttling.BaseThrottle):
    """Base of throttles that answer REST framework by a decision."""

    #: The decision of the last request.
    decision: Decision | None = None

    def answer(self, decision: Decision, view: APIView) -> bool:
        """Return True for an allowed request. Raise an APIException if the store failed, or the cost is too large."""
        self.decision = decision
        if decision.allowed:
            return True
        if decision.unavailable or (decision.retry_after is None and is_too_large(decision)):
            raise exception_of(decision)
        kind: Any = type(view)
        if _has_default_throttled(kind):
            view.throttled = _raise_throttled  # type: ignore[method-assign]
        return False

    def wait(self) -> float | None:
        """Return Retry-After in seconds, with RETRY_JITTER, or None if the request can never pass."""
        return None if self.decision is None else retry_seconds(self.decision.retry_after)


class RuleThrottle(DecidedThrottle):
    """Apply all rules of the view's scope in one decision: if one rule refuses, none is charged.

    The scope is the view's ``throttle_scope``, else its route's name, else its route. ``throttle_cost`` on the view is
    a number of units, or a function of the request.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        inner, caller = getattr(request, "_request", request), RequestCaller(request)
        scope, cost = scope_and_cost(view, inner)
        cost = 1 if cost is None or cost == 1 else cost_of(own_function(cost), request, call_kind="request")
        state = state_of(inner)
        if state.has_charged and state.routed.scope and state.routed.scope != scope:
            state.correct_scope({rule.name for rule in rulebook.current().covering(scope)})
        decision = plain_request.decide(inner, state, scope, caller, cost)
        state.callers += (caller,)
        finish_in_view(view, inner, caller, state)
        self.decision = decision
        return decision.allowed or self.answer(decision, view)
