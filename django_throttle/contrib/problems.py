"""An exception handler for REST framework: its views then answer refusals with problem documents (RFC 9457).

``REST_FRAMEWORK = {"EXCEPTION_HANDLER": "django_throttle.contrib.problems.answer"}``
"""

from __future__ import annotations

from typing import Any

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


def answer(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """A problem document for what our rules refuse; for anything else what REST framework itself answers."""
    decision = _refused(context)
    if decision is None or not isinstance(exc, (Throttled, LimiterUnavailable)):
        return exception_handler(exc, context)
    set_rollback()
    return problem_response(decision, exc.status_code, exc.wait)  # type: ignore[union-attr]  # whole already


def _refused(context: dict[str, Any]) -> Decision | None:
    """All that was refused of this request, as one; None where it was a throttle that is none of ours."""
    request = context.get("request")
    refusals = [] if request is None else [one for one in decisions_of(django_request(request)) if not one.allowed]
    return combine_outcomes(tuple([outcome for one in refusals for outcome in one.outcomes])) if refusals else None
