"""The admin's page that shows all rules at work: sparklines, shares refused, processes and their rules."""

from __future__ import annotations

from typing import Final

from django.contrib.admin import ModelAdmin
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.translation import gettext

from django_throttle.admin.page import shown_page
from django_throttle.console.recording.cells import Minute
from django_throttle.console.recording.overview import STATES, overview, rule_names
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleRule
from django_throttle.stores import get_store
from django_throttle.translated import ngettext, translated, written

OVERVIEW_URL: Final = "django_throttle_overview"
PAGE_ROWS: Final = 50
MOST_PROCESSES: Final = 200
WIDTH, HEIGHT = 120, 24


def overview_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """The page, for those who may see the rules; ``?q`` searches names, ``?page`` has the next ones."""
    return shown_page(
        rules, request, "throttle_console/overview", gettext("Rules at work"), lambda: _found(request.GET)
    )


def _found(asked: QueryDict) -> dict[str, object]:
    search = asked.get("q", "")[:200]
    page = Paginator(rule_names(search), PAGE_ROWS).get_page(asked.get("page"))
    try:
        found = overview(get_store(), list(page.object_list))
    except (StoreError, InvalidSetting) as error:
        return {"failure": translated(error)}
    rows = [
        {
            "rule": one,
            "calls": written(one.day.calls),
            "hints": [translated(hint) for hint in one.hints],
            "share": written(one.refused_share, ".1%") if one.day.calls else "–",
            "p99": f"{written(one.p99_ms, '.2f')} ms" if one.day.calls else "–",
            "hour": bars(one.hour_points),
            "hour_label": _label(one.hour),
            "day": bars(one.day_points),
            "day_label": _label(one.day),
        }
        for one in found.rules
    ]
    said = {
        "processes": translated(found.in_words),
        "store": translated(found.store_in_words),
        "each": [(one, translated(STATES[one.state])) for one in found.processes[:MOST_PROCESSES]],
    }
    size = {"width": WIDTH, "height": HEIGHT}
    return {"failure": "", "rows": rows, "found": found, "page": page, "search": search, **said, **size}


def _label(of: Minute) -> str:
    return ngettext(
        "{calls:,} call, {allowed:,} allowed",
        "{calls:,} calls, {allowed:,} allowed",
        of.calls,
        calls=of.calls,
        allowed=of.allowed,
    )


def bars(points: list[tuple[int, int]], most: int = 0) -> list[dict[str, str]]:
    """The bars of a sparkline: where each begins, how wide it is, and how high what was allowed and refused is.

    ``most`` is what the whole height stands for; without it the highest bar.
    """
    most, width = most or max([sum(point) for point in points], default=0) or 1, WIDTH / (len(points) or 1)
    return [
        {
            "x": f"{place * width:.2f}",
            "width": f"{width * 0.85:.2f}",
            "allowed": f"{HEIGHT * allowed / most:.2f}",
            "allowed_y": f"{HEIGHT - HEIGHT * allowed / most:.2f}",
            "refused": f"{HEIGHT * refused / most:.2f}",
            "refused_y": f"{HEIGHT - HEIGHT * (allowed + refused) / most:.2f}",
        }
        for place, (allowed, refused) in enumerate(points)
        if allowed or refused
    ]
