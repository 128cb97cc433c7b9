"""Checks of the order of middleware, where it breaks what rules say; see docs/howto/middleware.rst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, register

from django_throttle.checks.project import MIDDLEWARE
from django_throttle.checks.settings import (
    RawSettings,
    place_of,
    rules_of_database,
    rules_of_settings,
    settings_check,
    warning,
)
from django_throttle.core import Rule

CONDITIONAL: Final = "django.middleware.http.ConditionalGetMiddleware"
CORS: Final = "corsheaders.middleware.CorsMiddleware"
FETCH: Final = "django.middleware.cache.FetchFromCacheMiddleware"


@settings_check()
def check_order(raw: RawSettings) -> Iterator[CheckMessage]:
    """Middleware on the wrong side of ours."""
    if _is_above(MIDDLEWARE, CORS):
        message = "ThrottleMiddleware stands above CorsMiddleware: preflights count, and scripts cannot read a refusal"
        yield warning("W092", message, f"List {CORS} before {MIDDLEWARE}.")
    if _is_above(FETCH, MIDDLEWARE):
        message = (
            "ThrottleMiddleware stands below FetchFromCacheMiddleware: copies from the cache are not counted, and have "
            "the RateLimit field of another client"
        )
        yield warning("W093", message, f"List {FETCH} last.")
    yield from _unseen_statuses(rules_of_settings(_asks_for_304))


@register(Tags.database)
def check_order_rows(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_: object
) -> list[CheckMessage]:
    """The same of rules in the database, only where it may be asked."""
    return list(_unseen_statuses(filter(_asks_for_304, rules_of_database(databases).rules.values())))


def _unseen_statuses(rules: Iterable[Rule]) -> Iterator[CheckMessage]:
    if _is_above(CONDITIONAL, MIDDLEWARE):
        for rule in rules:
            message = (
                f"rule {rule.name!r} counts 200 and 304 differently, but ConditionalGetMiddleware makes 304 of 200 "
                "above ThrottleMiddleware, which sees 200"
            )
            yield warning("W091", message, f"List {MIDDLEWARE} before {CONDITIONAL}.")


def _asks_for_304(rule: Rule) -> bool:
    return rule.enabled and rule.counts(200) != rule.counts(304)


def _is_above(first: str, second: str) -> bool:
    """Return whether both are listed, or classes of their kinds, in this order."""
    places = place_of(first), place_of(second)
    return places[0] is not None and places[1] is not None and places[0] < places[1]
