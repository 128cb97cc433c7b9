"""Where the admin's pages about rules are that are neither a form nor a list of Django's."""

from __future__ import annotations

from functools import partial

from django.contrib.admin import ModelAdmin
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST, require_safe

from django_throttle.admin import costs, explain, overview
from django_throttle.models import ThrottleRule


def page_urls(rules: ModelAdmin[ThrottleRule]) -> list[URLPattern]:
    """The addresses of these pages, below that of the list of rules."""
    views = {
        "explain/": (explain.URL_NAME, require_safe(partial(explain.explain_page, rules))),
        "explain/reset/": (explain.RESET_NAME, require_POST(partial(explain.reset_view, rules))),
        "overview/": (overview.OVERVIEW_URL, require_safe(partial(overview.overview_page, rules))),
        "costs/": (costs.URL_NAME, require_safe(partial(costs.costs_page, rules))),
    }
    return [path(where, rules.admin_site.admin_view(view), name=name) for where, (name, view) in views.items()]
