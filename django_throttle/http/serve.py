"""Shared course of the HTTP entry points, sync and async: decide a request, answer or refuse it, and finish it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest, HttpResponse

from django_throttle.core.io import Io
from django_throttle.exceptions import Refused
from django_throttle.http.finalize import afinish_failed, finish, finish_failed, status_of_error
from django_throttle.http.refusal import refusal
from django_throttle.http.request_state import RequestState, django_request, state_of
from django_throttle.http.request_throttle import RequestThrottle
from django_throttle.identity import RequestCaller
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo


async def serve(
    request: HttpRequest,
    caller: RequestCaller,
    decide: Callable[[HttpRequest, RequestCaller, RequestState], Any],
    view: Callable[[HttpRequest], Any],
    answer_instead: Callable[[Io], Awaitable[HttpResponse | None]] | None = None,
    *,
    awaits: bool,
) -> Any:
    """Answer a request by its ``view``, or refuse it. The first entry point of a request finishes it.

    ``decide`` notes its decision of this caller's call, and returns it. ``answer_instead`` may answer an allowed
    request in place of the view. If ``awaits``, ``decide`` and ``view`` are awaited. Otherwise nothing suspends, and
    ``run`` returns the response. Refused, raised in the view by an inner call, is a refusal of the request.
    """
    state = state_of(request)
    finishes = state.become_finisher(caller)
    if "throttle" not in request.__dict__:
        request.__dict__["throttle"] = RequestThrottle(state)
    try:
        decision = await decide(request, caller, state) if awaits else decide(request, caller, state)
        response = None if decision.allowed else refusal(caller.subject, decision)
        if response is None and answer_instead is not None:
            response = await answer_instead((LoopIo if awaits else BlockingIo)(get_store()))
        if response is None:
            response = await view(request) if awaits else view(request)
    except Refused as error:
        if not finishes:
            raise
        response = refusal_of_error(caller.subject, error)
    except BaseException as error:
        if finishes and awaits:
            await afinish_failed(request, status_of_error(error))
        elif finishes:
            finish_failed(request, status_of_error(error))
        raise
    if finishes and (finish_work := finish(request, response, state)):
        await finish_work((LoopIo if awaits else BlockingIo)(get_store()))
    return response


def refusal_of_error(request: HttpRequest, error: Refused) -> HttpResponse:
    """Return the response to a refusal of an inner call of the view, and note the decision."""
    state_of(django_request(request)).note(error.decision)
    return refusal(request, error.decision)
