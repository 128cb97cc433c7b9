"""Responses to refused requests, with Retry-After, as a page or a problem document."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.translation import get_language

from django_throttle.core import Decision
from django_throttle.core.decision import deciding_outcome, error_code
from django_throttle.http.finalize import set_fields
from django_throttle.http.problem_details import CONTENT_TYPE, problem, wait_in_words
from django_throttle.http.retry_after import retry_seconds
from django_throttle.local.shared_clock import shared_clock
from django_throttle.observe.reports import reference

TEMPLATE: Final = "django_throttle/429.html"
OUR_TEMPLATE: Final = str(Path(__file__).parents[1] / "templates" / TEMPLATE)
#: Seconds of waiting from which our template shows the time, and the date.
TIME_SECONDS: Final = 60
DATE_SECONDS: Final = 43_200
#: Seconds at which the text of our template changes. Otherwise it depends only on "wait" and "when".
PAGE_BOUNDS: Final = (0, 1, TIME_SECONDS, DATE_SECONDS)
#: Placeholder in the cached page for the reference of the caller.
REFERENCE_PLACEHOLDER: Final = "-reference-"
HTML: Final = "text/html"
#: Seconds of waiting that are too long for a date.
MAX_DATE_SECONDS: Final = 1000 * 366 * 86_400
JSON: Final = (CONTENT_TYPE, "application/json")
#: Limits of the Accept header, so that clients cannot make refusals expensive. Browsers send a quarter of that.
MAX_ACCEPT_CHARS: Final = 512
UNCACHED: Final = {"Cache-Control": "no-store"}
VARY: Final = {"Vary": "Accept"}
MAX_RANGES: Final = 32


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response: a 429 with Retry-After, or a 503 if the store failed. It is never cached.

    Clients that prefer HTML get the template ``django_throttle/429.html``, others a problem document. If ``request`` is
    that of a REST framework view, the view answers by its exception handler.
    """
    if (view := (getattr(request, "parser_context", None) or {}).get("view")) is not None:
        from django_throttle.http.drf_exceptions import exception_of  # as REST framework is optional

        answer: HttpResponse = view.handle_exception(exception_of(decision))
        return answer
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    page = _page(decision, status, seconds) if prefers_html(request.META.get("HTTP_ACCEPT", "")) else None
    if page is None:
        response = problem_response(decision, status, seconds)
    else:
        response = _uncached(page, status, seconds, f"{HTML}; charset={settings.DEFAULT_CHARSET}")
    set_fields(VARY, response.headers)
    return response


def problem_response(decision: Decision, status: int, seconds: int | None) -> HttpResponse:
    """Return a problem document. ``seconds`` are those of Retry-After, or None for never."""
    body = problem(decision, status, seconds, reference=reference(decision))
    return _uncached(body, status, seconds, CONTENT_TYPE)


def late_problem(decision: Decision) -> dict[str, object]:
    """Return the problem document for the end of a stream. Its ``retry_after`` is in seconds, or None for never."""
    seconds = retry_seconds(decision.retry_after)
    status = 503 if decision.unavailable else 429
    fields: dict[str, object] = json.loads(problem(decision, status, seconds, reference=reference(decision)))
    return fields | {"retry_after": seconds}


def _uncached(content: str | bytes, status: int, seconds: int | None, kind: str) -> HttpResponse:
    response = HttpResponse(content, kind, status)
    set_fields(UNCACHED if seconds is None else UNCACHED | {"Retry-After": str(seconds)}, response.headers)
    return response


def prefers_html(accept: str) -> bool:
    """Return True if a client prefers HTML to JSON (RFC 9110, 12.5.1), and False for a header that is too long."""
    return len(accept) <= MAX_ACCEPT_CHARS and _prefers_html(accept)


@lru_cache(maxsize=512)
def _prefers_html(accept: str) -> bool:
    ranges: dict[str, tuple[float, int]] = {}
    for place, entry in enumerate(accept.lower().split(",", MAX_RANGES)[:MAX_RANGES]):
        name, parted, parameters = entry.partition(";")
        quality = _quality(parameters) if parted else 1.0
        if quality is not None:
            ranges.setdefault(name.strip(), (quality, -place))
    html = _rank(ranges, HTML)
    return html[0] > 0 and all(html > _rank(ranges, kind) for kind in JSON)


def _rank(ranges: Mapping[str, tuple[float, int]], kind: str) -> tuple[float, int, int]:
    """Return the rank of a media type: its quality, how closely the client names it, and its place in the header."""
    for closeness, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in ranges:
            quality, place = ranges[name]
            return quality, closeness, place
    return 0.0, 0, 0


def _quality(parameters: str) -> float | None:
    """Return the quality, by default 1. Return None if there are other parameters, because our types have none."""
    last = parameters.strip()
    if ";" in last:
        *others, last = [part.strip() for part in last.split(";")]
        if not all(parameter.startswith("q=") for parameter in others):
            return None
    if not last.startswith("q="):
        return None
    try:
        number = float(last[2:])
    except ValueError:
        return 1.0
    return number if 0 <= number <= 1 else 1.0


class _PageContent(NamedTuple):
    """Content of the page."""

    status: int
    code: str
    seconds: int | None
    wait: str | None
    #: Time when the request can pass, in minutes since 1970.
    minute: int | None
    largest: int | None
    unit: str
    reference: str

    def context(self) -> dict[str, object]:
        when = None
        if self.minute is not None:
            when = datetime.fromtimestamp(self.minute * 60, UTC if settings.USE_TZ else None)
        context = {"status": self.status, "code": self.code, "seconds": self.seconds, "wait": self.wait}
        context |= {"when": when, "reference": self.reference}
        return context if self.largest is None else context | {"largest": self.largest, "unit": self.unit}


def _page(decision: Decision, status: int, seconds: int | None) -> str | None:
    """Return the page, or None if the site has no templates. The request is not used, so no query is made.

    The shown time is rounded up to a minute. There is none if the wait is too long for a date.
    """
    try:
        template = get_template(TEMPLATE) if settings.DEBUG else _template()
    except TemplateDoesNotExist:
        return None
    origin = getattr(template, "origin", None)  # templates of other engines may have none
    is_ours = origin is not None and origin.name == OUR_TEMPLATE
    language = get_language()
    wait = minute = largest = None
    unit = ""
    if seconds is None:
        if (refused := deciding_outcome(decision)) is not None:
            largest, unit = refused.largest, refused.unit
    else:
        wait = wait_in_words(seconds, language)
        if seconds < MAX_DATE_SECONDS and (seconds >= TIME_SECONDS or not is_ours):
            minute = (int(shared_clock.now()) + seconds + 59) // 60
        seconds = PAGE_BOUNDS[bisect(PAGE_BOUNDS, seconds) - 1] if is_ours else seconds
    caller_reference = reference(decision)
    placeholder = REFERENCE_PLACEHOLDER if caller_reference and is_ours else caller_reference
    content = _PageContent(status, error_code(decision), seconds, wait, minute, largest, unit, placeholder)
    if not is_ours:
        page: str = template.render(content.context())
        return page
    zone = None if minute is None else timezone.get_current_timezone()
    return _our_page(content, language, zone).replace(placeholder, caller_reference)


@lru_cache(maxsize=1)
def _template() -> Any:
    """Return the template, cached because loading it takes longer than many views."""
    return get_template(TEMPLATE)


@receiver(setting_changed, dispatch_uid="django_throttle.refusal")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("INSTALLED_APPS", "TEMPLATES"):
        _template.cache_clear()


@lru_cache(maxsize=256)
def _our_page(content: _PageContent, language: str | None = None, zone: tzinfo | None = None) -> str:
    """Return our own page, cached because rendering it takes longer than many views.

    ``language`` is the current one. ``zone`` is the current time zone if the page shows a time.
    """
    page: str = get_template(TEMPLATE).render(content.context())
    return page
