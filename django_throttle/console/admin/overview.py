"""The admin's page that shows all rules at work: sparklines, shares refused, processes and their rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils.translation import gettext

from django_throttle.admin.page import PageEntry, shown_page
from django_throttle.console.models import ThrottleOverview
from django_throttle.console.recording.cells import Minute
from django_throttle.console.recording.overview import STATES, overview, rule_names
from django_throttle.console.recording.read import TAG, most_refused
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleRule
from django_throttle.rulebook import sources
from django_throttle.stores import get_store
from django_throttle.translated import ngettext, translated, written

OVERVIEW_URL: Final = "django_throttle_overview"
PAGE_ROWS: Final = 50
MOST_PROCESSES: Final = 200
MOST_REFUSED: Final = 3  # callers of a rule
WIDTH, HEIGHT = 120, 24


@admin.register(ThrottleOverview)
class ThrottleOverviewAdmin(PageEntry):
    """Entry of this page on the admin's index."""

    page = OVERVIEW_URL


def overview_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Return the page, for staff who may view rules. ``?q`` searches names."""
    may_replace = rules.has_add_permission(request)

    def links(names: Sequence[str]) -> dict[str, str]:
        """Return the URLs of the rules' forms by name. A rule in settings has one for those who may replace it."""
        form = f"{rules.admin_site.name}:django_throttle_throttlerule"
        rows = ThrottleRule.objects.filter(name__in=names).values_list("name", "pk")
        replaced = f"{reverse(f'{form}_add')}?replace="
        urls = {name: replaced + quote(name, safe="") for name in sources.from_settings().rules if may_replace}
        return urls | {name: reverse(f"{form}_change", args=[pk]) for name, pk in rows}

    return shown_page(
        rules, request, "throttle_console/overview", gettext("Rules at work"), lambda: _found(request.GET, links)
    )


def _found(asked: QueryDict, links: Callable[[Sequence[str]], Mapping[str, str]]) -> dict[str, object]:
    search = asked.get("q", "")[:200]
    try:
        store = get_store()
        page = Paginator(rule_names(store, search), PAGE_ROWS).get_page(asked.get("page"))
        found = overview(store, list(page.object_list))
        most = {rule.name: most_refused(store, rule.name, 24)[:MOST_REFUSED] for rule in found.rules if rule.refused}
    except (StoreError, InvalidSetting) as error:
        return {"failure": translated(error)}
    urls = links(list(page.object_list))
    rows: list[dict[str, Any]] = [
        {
            "rule": one,
            "url": urls.get(one.name, ""),
            "refused": written(one.refused),
            "callers": [
                (tag[:8] if TAG.fullmatch(tag) else tag, written(count)) for tag, count, _ in most.get(one.name, ())
            ],
            "calls": written(one.day.calls),
            "hints": [translated(hint) for hint in one.hints],
            "share": written(one.refused_share, ".1%") if one.day.calls else "–",
            "p99": f"{written(one.p99_ms, '.0f' if one.p99_ms >= 10 else '.1f')} ms" if one.day.calls else "–",
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
    parts = {
        "rows": [row for row in rows if row["rule"].day.calls],
        "idle": [row for row in rows if not row["rule"].day.calls],
    }
    return {"failure": "", **parts, "found": found, "page": page, "search": search, **said, **size}


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
