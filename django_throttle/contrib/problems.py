"""Exception handler for REST framework, by which views answer refusals with problem documents (RFC 9457).

``REST_FRAMEWORK = {"EXCEPTION_HANDLER": "django_throttle.contrib.problems.answer"}``
"""

from __future__ import annotations

from django.http import HttpResponse

from django_throttle.core.decision import Decision, combine_outcomes
from django_throttle.drf import LimiterUnavailable
from django_throttle.exceptions import needs_extra
from django_throttle.http.refusal import problem_response
from django_throttle.http.request_state import decisions_of, django_request

with needs_extra("drf", "rest_framework"):
    from rest_framework.exceptions import Throttled
    from rest_framework.views import exception_handler, set_rollback

__all__ = ["answer"]


def answer(exc: Exception, context: dict[str, object]) -> HttpResponse | None:
    """Return a problem document for a refusal by our rules, and REST framework's own answer for other errors."""
    decision = _refused(context)
    if decision is None or not isinstance(exc, (Throttled, LimiterUnavailable)):
        return exception_handler(exc, context)
    set_rollback()
    return problem_response(decision, exc.status_code, exc.wait)  # type: ignore[union-attr]  # a whole number


def _refused(context: dict[str, object]) -> Decision | None:
    """Return one decision of all refusals of a request, or None if a throttle that is not ours has refused it."""
    request = context.get("request")
    decisions = () if request is None else decisions_of(django_request(request))
    refusals = [decision for decision in decisions if not decision.allowed]
    outcomes = tuple([outcome for decision in refusals for outcome in decision.outcomes])
    return combine_outcomes(outcomes) if refusals else None
