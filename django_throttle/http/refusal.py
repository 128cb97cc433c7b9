"""Refused requests: Retry-After, and the response, as a page or a problem document."""

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
from django.http import HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.translation import get_language

from django_throttle.core import Decision
from django_throttle.core.decision import deciding_outcome, error_code
from django_throttle.http.finalize import set_fields
from django_throttle.http.problem_details import CONTENT_TYPE, problem, wait_in_words
from django_throttle.http.retry_after import retry_seconds
from django_throttle.observe.reports import reference

TEMPLATE: Final = "django_throttle/429.html"
OUR_TEMPLATE: Final = str(Path(__file__).parents[1] / "templates" / TEMPLATE)
# Seconds from which on our template names a moment, and its day.
SHOWS_WHEN: Final = 60
NAMES_MONTH: Final = 43_200
# Those from which on it says something else; otherwise it depends on "wait" and "when" alone.
PAGE_BOUNDS: Final = (0, 1, SHOWS_WHEN, NAMES_MONTH)
REFERENCE: Final = "-reference-"  # stands in our page as it is kept, where each answer has the caller's
HTML: Final = "text/html"
FAR_OFF: Final = 1000 * 366 * 86_400  # seconds
JSON: Final = (CONTENT_TYPE, "application/json")
# What browsers send is a quarter as long and has a dozen ranges. A refusal must not cost what a client likes.
MAX_ACCEPT: Final = 512
UNCACHED: Final = {"Cache-Control": "no-store"}
VARY: Final = {"Vary": "Accept"}
MAX_RANGES: Final = 32


def refusal(request: Any, decision: Decision) -> HttpResponse:
    """Return the response: 429 with Retry-After, or 503 when the store failed; never cached.

    A client that prefers HTML gets the template ``django_throttle/429.html``; any other a problem document. A view of
    REST framework that has made its request of ``request`` answers itself, by its exception handler.
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
    else:  # a type that is not given is made of what Django looks for
        response = _uncached(page, status, seconds, f"{HTML}; charset={settings.DEFAULT_CHARSET}")
    set_fields(VARY, response.headers)
    return response


def problem_response(decision: Decision, status: int, seconds: int | None) -> HttpResponse:
    """A problem document; ``seconds`` are those of Retry-After, None for never."""
    body = problem(decision, status, seconds, reference=reference(decision))
    return _uncached(body, status, seconds, CONTENT_TYPE)


def late_problem(decision: Decision) -> dict[str, Any]:
    """The problem document for the end of a stream; ``retry_after`` is in seconds, None for never."""
    seconds = retry_seconds(decision.retry_after)
    status = 503 if decision.unavailable else 429
    fields: dict[str, Any] = json.loads(problem(decision, status, seconds, reference=reference(decision)))
    return fields | {"retry_after": seconds}


def _uncached(content: str | bytes, status: int, seconds: int | None, kind: str) -> HttpResponse:
    response = HttpResponse(content, kind, status)
    set_fields(UNCACHED if seconds is None else UNCACHED | {"Retry-After": str(seconds)}, response.headers)
    return response


def prefers_html(accept: str) -> bool:
    """Whether a client would rather have HTML than JSON (RFC 9110, 12.5.1); False for a header that is too long."""
    return len(accept) <= MAX_ACCEPT and _prefers_html(accept)


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
    """Quality first, then how closely the client names it, then how early."""
    for closeness, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in ranges:
            quality, place = ranges[name]
            return quality, closeness, place
    return 0.0, 0, 0


def _quality(parameters: str) -> float | None:
    """1 unless they say a number from 0 to 1; None where they say anything else, which none of our types has."""
    last = parameters.strip()
    if ";" in last:
        *others, last = [part.strip() for part in last.split(";")]
        if not all(one.startswith("q=") for one in others):
            return None
    if not last.startswith("q="):
        return None
    try:
        number = float(last[2:])
    except ValueError:
        return 1.0
    return number if 0 <= number <= 1 else 1.0


class _Said(NamedTuple):
    """What the page says, and needs to say it; ``minute`` is when the request can pass, in minutes since 1970."""

    status: int
    code: str
    seconds: int | None
    wait: str | None
    minute: int | None
    largest: int | None
    unit: str
    reference: str

    def context(self) -> dict[str, Any]:
        when = None
        if self.minute is not None:
            when = datetime.fromtimestamp(self.minute * 60, UTC if settings.USE_TZ else None)
        found = {"status": self.status, "code": self.code, "seconds": self.seconds, "wait": self.wait}
        found |= {"when": when, "reference": self.reference}
        return found if self.largest is None else found | {"largest": self.largest, "unit": self.unit}


def _page(decision: Decision, status: int, seconds: int | None) -> str | None:
    """The page; None where a site has no templates. Rendered without the request, so no query and no user is needed.

    Its moment is rounded up to a minute; None where it is too far off to have a date.
    """
    try:
        template = get_template(TEMPLATE) if settings.DEBUG else _template()
    except TemplateDoesNotExist:
        return None
    origin = getattr(template, "origin", None)  # the templates of Django's engines have one
    is_ours = origin is not None and origin.name == OUR_TEMPLATE
    language = get_language()
    wait = minute = largest = None
    unit = ""
    if seconds is None:
        if (refused := deciding_outcome(decision)) is not None:
            largest, unit = refused.largest, refused.unit
    else:
        wait = wait_in_words(seconds, language)
        if seconds < FAR_OFF and (seconds >= SHOWS_WHEN or not is_ours):
            minute = (int(timezone.now().timestamp()) + seconds + 59) // 60
        seconds = PAGE_BOUNDS[bisect(PAGE_BOUNDS, seconds) - 1] if is_ours else seconds
    quoted = reference(decision)
    stands = REFERENCE if quoted and is_ours else quoted
    said = _Said(status, error_code(decision), seconds, wait, minute, largest, unit, stands)
    if not is_ours:
        page: str = template.render(said.context())
        return page
    zone = None if minute is None else timezone.get_current_timezone()
    return _our_page(said, language, zone).replace(stands, quoted)


@lru_cache(maxsize=1)
def _template() -> Any:
    """The template in force: looking for it takes longer than many views."""
    return get_template(TEMPLATE)


@receiver(setting_changed, dispatch_uid="django_throttle.refusal")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("INSTALLED_APPS", "TEMPLATES"):
        _template.cache_clear()


@lru_cache(maxsize=256)
def _our_page(said: _Said, language: str | None = None, zone: tzinfo | None = None) -> str:
    """Our own page, remembered: it depends on these alone, and rendering it takes longer than many views.

    It is rendered in the language in force, and in the zone where it has a moment.
    """
    page: str = get_template(TEMPLATE).render(said.context())
    return page
