"""What the doors of HTTP do with a request, written once for sync and async: decide, answer or refuse, finish."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse

from django_throttle import limiter
from django_throttle.exceptions import Refused
from django_throttle.facts import Who
from django_throttle.http.body import meter
from django_throttle.http.finalize import aabandon, abandon, afinish, finish, status_of_error
from django_throttle.http.refusal import refusal
from django_throttle.http.request_state import keep, visit_of
from django_throttle.stores.base import Step, Steps


def serve(request: HttpRequest, who: Who, facts: Step, view: Step) -> Steps[Any]:
    """Answer a request by its ``view``, or refuse it; the first door that it comes to finishes it.

    ``facts`` makes those of the request. A refusal that the view lets pass, of something it called, is one of the
    request.
    """
    attends = visit_of(request).attend(who)
    try:
        refused = yield from refused_by_rules(request, facts)
        response = (yield view) if refused is None else refused
    except Refused as error:
        if not attends:
            raise
        response = refused_by(request, error)
    except BaseException as error:
        if attends:
            status = status_of_error(error)
            yield Step(partial(abandon, request, status), partial(aabandon, request, status))
        raise
    if attends:
        yield Step(partial(finish, request, response), partial(afinish, request, response))
    return response


def refused_by_rules(request: HttpRequest, facts: Step) -> Steps[HttpResponse | None]:
    """Decide a request under the rules that match it: None where it is allowed, else its refusal."""
    call = yield facts
    decision = yield Step(partial(limiter.decide, call), partial(limiter.adecide, call))
    if keep(request, decision, call).volumes:
        meter(request, call.size)
    return None if decision.allowed else refusal(request, decision)


def refused_by(request: HttpRequest, error: Refused) -> HttpResponse:
    """The response to a refusal of something that the view called."""
    keep(request, error.decision)
    return refusal(request, error.decision)
