"""Refused requests: Retry-After, and the response, as a page or a problem document."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.timezone import get_current_timezone
from django.utils.translation import get_language

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem_details import CONTENT_TYPE, error_code, problem, refusing

# Seconds: a share alone would be days for a client that waits for the next month.
MOST_JITTER: Final = 60.0
UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60))


def retry_seconds(retry_after: float | None, chance: Callable[[], float] = random.random) -> int | None:
    """Retry-After in whole seconds, longer by a random share up to RETRY_JITTER, a minute at most; None for never."""
    most = min(conf().RETRY_JITTER, MOST_JITTER / retry_after) if retry_after else 0.0
    return delay_seconds(retry_after, most * chance())


def wait_in_words(seconds: int) -> str:
    """A wait for a person, rounded up: 45 seconds, 1 minute, 90 seconds, 2 minutes, 3 days."""
    # Rounded up to 1 or 2 units it would be far too long.
    fitting = (unit for unit in UNITS if seconds >= 3 * unit[1] or seconds % unit[1] == 0)
    name, size = next(fitting, ("second", 1))
    count = -(-seconds // size)
    return f"{count} {name}{'' if count == 1 else 's'}"


TEMPLATE: Final = "django_throttle/429.html"
OUR_TEMPLATE: Final = str(Path(__file__).parents[1] / "templates" / TEMPLATE)
# Seconds from which on our template says something else; otherwise it depends on "wait" and "when" alone.
PAGE_BOUNDS: Final = (0, 1, 60, 43_200)
HTML: Final = "text/html"
FAR_OFF: Final = 1000 * 366 * 86_400  # seconds
JSON: Final = (CONTENT_TYPE, "application/json")
# What browsers send is a quarter as long and has a dozen ranges. A refusal must not cost what a client likes.
MAX_ACCEPT: Final = 512
MAX_RANGES: Final = 32


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The response: 429 with Retry-After, or 503 when the store failed; never cached.

    A client that prefers HTML gets the template ``django_throttle/429.html``; any other a problem document.
    """
    status = 503 if decision.unavailable else 429
    seconds = retry_seconds(decision.retry_after)
    page = _page(decision, status, seconds) if prefers_html(request.META.get("HTTP_ACCEPT", "")) else None
    response = problem_response(decision, status, seconds) if page is None else _uncached(page, status, seconds)
    response["Vary"] = "Accept"
    return response


def problem_response(decision: Decision, status: int, seconds: int | None) -> HttpResponse:
    """A problem document; ``seconds`` are those of Retry-After, None for never."""
    return _uncached(problem(decision, status, seconds), status, seconds, CONTENT_TYPE)


def _uncached(content: str | bytes, status: int, seconds: int | None, kind: str | None = None) -> HttpResponse:
    retry = {} if seconds is None else {"Retry-After": str(seconds)}
    return HttpResponse(content, kind, status, headers={"Cache-Control": "no-store", **retry})


def prefers_html(accept: str) -> bool:
    """Whether a client would rather have HTML than JSON (RFC 9110, 12.5.1); False for a header that is too long."""
    return len(accept) <= MAX_ACCEPT and _prefers_html(accept)


@lru_cache(maxsize=512)
def _prefers_html(accept: str) -> bool:
    ranges: dict[str, tuple[float, int]] = {}
    for place, entry in enumerate(accept.lower().split(",", MAX_RANGES)[:MAX_RANGES]):
        name, *parameters = [part.strip() for part in entry.split(";")]
        if all(one.startswith("q=") for one in parameters):  # others say what none of ours is
            ranges.setdefault(name, (_quality(parameters), -place))
    html = _rank(ranges, HTML)
    return html[0] > 0 and all(html > _rank(ranges, kind) for kind in JSON)


def _rank(ranges: Mapping[str, tuple[float, int]], kind: str) -> tuple[float, int, int]:
    """Quality first, then how closely the client names it, then how early."""
    for closeness, name in ((2, kind), (1, f"{kind.partition('/')[0]}/*"), (0, "*/*")):
        if name in ranges:
            quality, place = ranges[name]
            return quality, closeness, place
    return 0.0, 0, 0


def _quality(parameters: Sequence[str]) -> float:
    """1 unless it says a number from 0 to 1."""
    try:
        quality = float(parameters[-1][2:]) if parameters else 1.0
    except ValueError:
        return 1.0
    return quality if 0 <= quality <= 1 else 1.0


def _page(decision: Decision, status: int, seconds: int | None) -> str | None:
    """The page; None where a site has no templates. Rendered without the request, so no query and no user is needed.

    ``when`` is rounded up to a minute; None where it is too far off to have a date.
    """
    context = {"status": status, "code": error_code(decision), "seconds": seconds, "wait": None, "when": None}
    if (said := refusing(decision)) and said.largest is not None:
        context |= {"largest": said.largest, "unit": said.unit}
    if seconds is not None:
        context["wait"] = wait_in_words(seconds)
        if seconds < FAR_OFF:
            after = timezone.now() + timedelta(seconds=seconds + 59)
            context["when"] = after.replace(second=0, microsecond=0)
    try:
        template = get_template(TEMPLATE) if settings.DEBUG else _template()
    except TemplateDoesNotExist:
        return None
    origin = getattr(template, "origin", None)  # the templates of Django's engines have one
    if origin is None or origin.name != OUR_TEMPLATE:
        return template.render(context)
    context["seconds"] = PAGE_BOUNDS[bisect(PAGE_BOUNDS, seconds or 0) - 1]
    return _our_page(get_language(), get_current_timezone(), **context)


@lru_cache(maxsize=1)
def _template() -> Any:
    """The template in force: looking for it takes longer than many views."""
    return get_template(TEMPLATE)


@receiver(setting_changed, dispatch_uid="django_throttle.refusal")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("INSTALLED_APPS", "TEMPLATES"):
        _template.cache_clear()


@lru_cache(maxsize=256)
def _our_page(language: str | None, zone: tzinfo, **context: Any) -> str:
    """Our own page, remembered: it depends on these alone, and rendering it takes longer than many views."""
    return get_template(TEMPLATE).render(context)
