"""The answer to a refused request: a page for a person, a problem document for a program."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.cache import patch_vary_headers

from django_throttle.core import Decision
from django_throttle.core.problem import CONTENT_TYPE, error_code, problem, refusing
from django_throttle.retry import in_words, retry_seconds

TEMPLATE: Final = "django_throttle/429.html"
HTML: Final = "text/html"
FAR_OFF: Final = 1000 * 366 * 86_400  # seconds
# The first is what a client gets that takes anything.
OFFERED: Final = (CONTENT_TYPE, "application/json", HTML)


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """429 with Retry-After, 503 when the store failed, as the client is not at fault; never to be cached.

    A client that would rather have HTML gets the template ``django_throttle/429.html``; any other a problem document.
    """
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    page = _page(decision, status, seconds) if request.get_preferred_type(OFFERED) == HTML else None
    if page is None:
        response = HttpResponse(problem(decision, status, seconds), status=status, content_type=CONTENT_TYPE)
    else:
        response = HttpResponse(page, status=status)
    patch_vary_headers(response, ("Accept",))
    response["Cache-Control"] = "no-store"
    if seconds is not None:
        response["Retry-After"] = str(seconds)
    return response


def _page(decision: Decision, status: int, seconds: int | None) -> str | None:
    """None where a site has no templates. Rendered without the request: nothing is asked of the database or the user.

    ``when`` is rounded up to a minute, as it is for people; None where it is too far off to have a date.
    """
    context = {"status": status, "code": error_code(decision), "seconds": seconds, "wait": None, "when": None}
    if (said := refusing(decision)) and said.largest is not None:
        context |= {"largest": said.largest, "unit": said.unit}
    if seconds is not None:
        context["wait"] = in_words(seconds)
        if seconds < FAR_OFF:
            after = timezone.now() + timedelta(seconds=seconds + 59)
            context["when"] = after.replace(second=0, microsecond=0)
    try:
        return render_to_string(TEMPLATE, context)
    except TemplateDoesNotExist:
        return None
