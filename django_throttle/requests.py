"""What the HTTP doors have in common: the decisions of a request, and the answer to a refused one."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponse

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import CONTENT_TYPE, problem

_KEPT: Final = "throttle_decisions"


def keep(request: HttpRequest, decision: Decision) -> None:
    """Note a decision on the request, for the doors that come after, and for headers and logs."""
    setattr(request, _KEPT, (*kept(request), decision))


def kept(request: HttpRequest) -> tuple[Decision, ...]:
    """The decisions made of this request so far."""
    found: tuple[Decision, ...] = getattr(request, _KEPT, ())
    return found


def charged(request: HttpRequest) -> frozenset[str]:
    """The names of the rules that were charged for this request already: no door charges them again."""
    return frozenset(outcome.rule for decision in kept(request) if decision.allowed for outcome in decision.outcomes)


def refusal(decision: Decision) -> HttpResponse:
    """429 with Retry-After and a problem document; 503 when the store failed, as the client is not at fault."""
    status = 503 if decision.unavailable else 429
    response = HttpResponse(problem(decision, status), status=status, content_type=CONTENT_TYPE)
    response["Cache-Control"] = "no-store"
    seconds = delay_seconds(decision.retry_after)
    if seconds is not None:
        response["Retry-After"] = str(seconds)
    return response
