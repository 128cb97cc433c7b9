"""``RuleThrottle``, its base, and the exceptions of refusals.

A view with such a throttle finishes its request, where no other entry point does: header fields, refunds, slots.
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
from django_throttle.identity.call import Caller, cost_of, own_function
from django_throttle.runtime import is_on_event_loop, spawn

if TYPE_CHECKING:
    # REST framework imports the default throttle classes while it imports its views.
    from rest_framework.response import Response
    from rest_framework.views import APIView


def _raise_throttled(request: Request, wait: float | None) -> NoReturn:
    """What a view's own ``throttled`` does."""
    raise throttled_error(None if wait is None else ceil(wait))


@lru_cache(maxsize=512)
def _raises_as_usual(view: type[object]) -> bool:
    from rest_framework.views import APIView  # which imports this module, see above

    return getattr(view, "throttled", None) is APIView.throttled


def finish_in_view(view: Any, request: HttpRequest, caller: Caller, state: RequestState) -> None:
    """Have the view finish its request, also where it raises; not where another entry point does.

    The view itself answers a refusal of something that it has called, by the site's EXCEPTION_HANDLER.
    An asynchronous view makes its response on the event loop without awaiting, so what it owes is settled as soon as
    its method has returned.
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
    """Have the view of REST framework that is running in this thread, if any, answer a refusal; see ``_Finisher``."""
    if (views := sys.modules.get("rest_framework.views")) is None:
        return
    frame = sys._getframe(1)
    while frame is not None:
        view = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if isinstance(view, views.APIView) and isinstance(request := getattr(view, "request", None), Request):
            inner = django_request(request)
            finish_in_view(view, inner, RequestCaller(request), state_of(inner))
            return
        frame = frame.f_back  # type: ignore[assignment]


def connect() -> None:
    """Have refusals that no entry point has answered prepare the view that is running."""
    if finish_in_running_view not in limiter.before_refusals:
        limiter.before_refusals.append(finish_in_running_view)


class _Finisher:
    """Finishes a request in the view that answers it: has the methods that the view calls in place of its own.

    Whoever calls a view with this request again makes another call.
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

    def finalize_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return the view's response; where an event loop runs, which must not be blocked, refund and release later."""
        try:
            response = self.finalize(*args, **kwargs)
        except BaseException as error:
            _finish_failed(self.request, error)
            raise
        if finish_work := plain_request.finish(self.request, response, self.state):
            run_soon(finish_work)
        self.state.forget_charges()
        return response

    def handle_exception(self, error: Exception) -> Response:
        """Return the response to an error; see ``handle_refusal``."""
        try:
            return self.handle_refusal(error)
        except BaseException as raised:
            _finish_failed(self.request, raised)
            raise

    def handle_refusal(self, error: Exception) -> Response:
        """Return the response to an error; a refusal that the view did not catch is one of the request."""
        if isinstance(error, Refused):
            self.state.note(error.decision)
            error = exception_of(error.decision)
        return self.handle(error)


def answer_of_view(request: HttpRequest, error: Refused) -> Response | None:
    """Return the response that the view of REST framework which this request came to makes of a refusal.

    The view has let it pass, as it knows nothing of it. None for any other view.
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
    """Settle what is owed where the view has no response; soon after, where an event loop must not be blocked."""
    state, status = state_of(request), status_of_error(error)
    if (state.slots or state.counts_some or state.has_refused) and is_on_event_loop():
        spawn(sync_to_async(finish_failed)(request, status))
    else:
        finish_failed(request, status)


@lru_cache(maxsize=512)
def _is_async(view: type[object]) -> bool:
    return bool(getattr(view, "view_is_async", False))  # Django computes it anew each time


def _finish_in_method(view: Any, method: str, request: HttpRequest) -> None:
    answer = getattr(view, method, None)
    if answer is None:
        return
    awaited = answer if iscoroutinefunction(answer) else sync_to_async(answer)

    @wraps(answer)
    async def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return await afinish(request, await awaited(*args, **kwargs))
        except Exception:  # the view will make a response of it: its status will say what is refunded
            await arelease(request)
            raise
        except BaseException as error:
            await afinish_failed(request, status_of_error(error))
            raise

    setattr(view, method, answered)


class DecidedThrottle(throttling.BaseThrottle):
    """Translates a decision into what DRF asks of a throttle; ``decision`` is that of the request."""

    decision: Decision | None = None

    def answer(self, decision: Decision, view: APIView) -> bool:
        """Whether the request may pass. Raises an APIException for a failed store and for what is too large."""
        self.decision = decision
        if decision.allowed:
            return True
        if decision.unavailable or (decision.retry_after is None and is_too_large(decision)):
            raise exception_of(decision)
        kind: Any = type(view)
        if _raises_as_usual(kind):
            view.throttled = _raise_throttled  # type: ignore[method-assign]
        return False

    def wait(self) -> float | None:
        """Retry-After in seconds, RETRY_JITTER included; None when the request will never pass."""
        return None if self.decision is None else retry_seconds(self.decision.retry_after)


class RuleThrottle(DecidedThrottle):
    """All rules that match the view's scope, decided as one: refused by one, charged by none.

    The scope is the view's ``throttle_scope``, else its route's name, else its route. ``throttle_cost``
    on the view is a number, or a callable of the request.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        inner, caller = getattr(request, "_request", request), RequestCaller(request)
        scope, cost = scope_and_cost(view, inner)
        cost = 1 if cost is None or cost == 1 else cost_of(own_function(cost), request, what="request")
        state = state_of(inner)
        if state.has_charged and state.routed.scope and state.routed.scope != scope:
            state.correct_scope({rule.name for rule in rulebook.current().covering(scope)})
        decision = plain_request.decide(inner, state, scope, caller, cost)
        state.callers += (caller,)
        finish_in_view(view, inner, caller, state)
        self.decision = decision
        return decision.allowed or self.answer(decision, view)
