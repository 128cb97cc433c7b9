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
MAX_PROCESSES: Final = 200
MAX_REFUSED_CALLERS: Final = 3  # callers of a rule
WIDTH, HEIGHT = 120, 24


@admin.register(ThrottleOverview)
class ThrottleOverviewAdmin(PageEntry):
    """Entry of this page on the admin's index."""

    page = OVERVIEW_URL


def overview_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Return the page, for staff who may view rules. ``?q`` searches names."""
    may_replace = rules.has_add_permission(request)

    def links(names: Sequence[str]) -> dict[str, str]:
        """Return the URLs of the rules' forms by name. A rule of the settings has one for users who may replace it."""
        form = f"{rules.admin_site.name}:django_throttle_throttlerule"
        rows = ThrottleRule.objects.filter(name__in=names).values_list("name", "pk")
        replaced = f"{reverse(f'{form}_add')}?replace="
        urls = {name: replaced + quote(name, safe="") for name in sources.from_settings().rules if may_replace}
        return urls | {name: reverse(f"{form}_change", args=[pk]) for name, pk in rows}

    return shown_page(
        rules,
        request,
        "throttle_console/overview",
        gettext("Rules at work"),
        lambda: _overview_context(request.GET, links),
    )


def _overview_context(query: QueryDict, links: Callable[[Sequence[str]], Mapping[str, str]]) -> dict[str, object]:
    search = query.get("q", "")[:200]
    try:
        store = get_store()
        page = Paginator(rule_names(store, search), PAGE_ROWS).get_page(query.get("page"))
        rule_overview = overview(store, list(page.object_list))
        most = {
            rule.name: most_refused(store, rule.name, 24)[:MAX_REFUSED_CALLERS]
            for rule in rule_overview.rules
            if rule.refused
        }
    except (StoreError, InvalidSetting) as error:
        return {"failure": translated(error)}
    urls = links(list(page.object_list))
    rows: list[dict[str, Any]] = [
        {
            "rule": rule,
            "url": urls.get(rule.name, ""),
            "refused": written(rule.refused),
            "callers": [
                (tag[:8] if TAG.fullmatch(tag) else tag, written(count)) for tag, count, _ in most.get(rule.name, ())
            ],
            "calls": written(rule.day.calls),
            "hints": [translated(hint) for hint in rule.hints],
            "share": written(rule.refused_share, ".1%") if rule.day.calls else "–",
            "p99": f"{written(rule.p99_ms, '.0f' if rule.p99_ms >= 10 else '.1f')} ms" if rule.day.calls else "–",
            "hour": bars(rule.hour_points),
            "hour_label": _label(rule.hour),
            "day": bars(rule.day_points),
            "day_label": _label(rule.day),
        }
        for rule in rule_overview.rules
    ]
    sentences = {
        "processes": translated(rule_overview.in_words),
        "store": translated(rule_overview.store_in_words),
        "each": [(process, translated(STATES[process.state])) for process in rule_overview.processes[:MAX_PROCESSES]],
    }
    size = {"width": WIDTH, "height": HEIGHT}
    parts = {
        "rows": [row for row in rows if row["rule"].day.calls],
        "idle": [row for row in rows if not row["rule"].day.calls],
    }
    return {"failure": "", **parts, "overview": rule_overview, "page": page, "search": search, **sentences, **size}


def _label(minute: Minute) -> str:
    return ngettext(
        "{calls:,} call, {allowed:,} allowed",
        "{calls:,} calls, {allowed:,} allowed",
        minute.calls,
        calls=minute.calls,
        allowed=minute.allowed,
    )


def bars(points: list[tuple[int, int]], most: int = 0) -> list[dict[str, str]]:
    """Return the bars of a sparkline, with their places and sizes. The points are allowed and refused calls.

    ``most`` is the number of calls at the whole height, by default that of the highest bar.
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
