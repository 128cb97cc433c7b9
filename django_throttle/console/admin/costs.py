"""The admin's page of costs: which routes use most queries, rows, time and bytes."""

from __future__ import annotations

from typing import Final

from django.contrib.admin import ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from django_throttle.admin.page import shown_page
from django_throttle.console.route_costs import HOURS, fetch, in_short, most_expensive
from django_throttle.core.option_words import UNITS
from django_throttle.costs.meter import MEASURES
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleRule
from django_throttle.stores import get_store
from django_throttle.translated import translated, written

URL_NAME: Final = "django_throttle_costs"
PAGE_ROWS: Final = 200


def costs_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Return the page, for staff who may view rules. ``?by`` is the measure."""
    by = request.GET.get("by", "")
    by = by if by in MEASURES else "wall_ms"
    labels = [(name, gettext(UNITS[name][0])) for name in MEASURES]
    return shown_page(
        rules,
        request,
        "throttle_console/costs",
        gettext("What requests cost"),
        lambda: {**_rows(by), "by": by, "measures": labels, "hours": HOURS},
    )


def _rows(by: str) -> dict[str, object]:
    try:
        store = get_store()
        costs = most_expensive(fetch(store), by)
    except (StoreError, InvalidSetting) as error:
        return {"routes": [], "failure": translated(error), "hidden": 0, "alone": False}
    routes = [
        {
            "scope": route.scope,
            "calls": written(route.calls),
            "figures": [in_short(number) for number in (route.total(by), *route.spreads[by])],
        }
        for route in costs[:PAGE_ROWS]
    ]
    return {"routes": routes, "failure": "", "hidden": len(costs[PAGE_ROWS:]), "alone": not store.is_remote}
