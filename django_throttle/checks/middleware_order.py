"""Checks of the order of middleware, where it breaks what rules say; see docs/howto/middleware.rst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dis import get_instructions
from itertools import chain, pairwise
from typing import Final

from django.conf import settings
from django.core.checks import CheckMessage

from django_throttle.checks.project import MIDDLEWARE, codes_of
from django_throttle.checks.settings import (
    RawSettings,
    database_check,
    importable,
    place_of,
    rules_of_settings,
    settings_check,
    value_of,
    warning,
)
from django_throttle.core import Rule
from django_throttle.identity.keys import is_path
from django_throttle.rulebook import SourceRules

CONDITIONAL: Final = "django.middleware.http.ConditionalGetMiddleware"
CORS: Final = "corsheaders.middleware.CorsMiddleware"
FETCH: Final = "django.middleware.cache.FetchFromCacheMiddleware"


@settings_check()
def check_order(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of middleware on the wrong side of ours."""
    if _is_above(MIDDLEWARE, CORS):
        message = "ThrottleMiddleware stands above CorsMiddleware: preflights count, and scripts cannot read a refusal"
        yield warning("W040", message, f"List {CORS} before {MIDDLEWARE}.")
    if _is_above(FETCH, MIDDLEWARE):
        message = (
            "ThrottleMiddleware stands below FetchFromCacheMiddleware: copies from the cache are not counted, and have "
            "the RateLimit field of another client"
        )
        yield warning("W040", message, f"List {FETCH} last.")
    yield from _unseen_statuses(rules_of_settings(_asks_for_304))


@settings_check()
def check_tenant(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn if ThrottleMiddleware stands above the middleware that sets what ``TENANT`` reads."""
    tenant, ours = value_of(raw, "TENANT"), place_of(MIDDLEWARE)
    if ours is None or not isinstance(tenant, str) or not tenant:
        return
    path = {tenant.partition(".")[0]}
    names = path if is_path(tenant) else {name for code in codes_of(importable(tenant)) for name in code.co_names}
    setters = [(place, each) for place, each in enumerate(settings.MIDDLEWARE) for name in names if _sets(each, name)]
    if setters and min(setters)[0] > ours:
        where = min(setters)[1]
        message = (
            f"ThrottleMiddleware stands above {where}, which sets what TENANT reads: rules by tenant apply to nobody"
        )
        yield warning("W040", message, f"List {MIDDLEWARE} below it.")


def _sets(middleware: str, name: str) -> bool:
    """Return True if the code of a middleware sets an attribute of this name, other than one of its own."""
    kind = importable(middleware)
    functions = [value for base in getattr(kind, "__mro__", ()) for value in vars(base).values()] or [kind]
    for code in chain.from_iterable(map(codes_of, functions)):
        for before, step in pairwise(get_instructions(code)):
            # From Python 3.13 on one step may load two variables, of which the last is the owner.
            owner = before.argval[-1] if isinstance(before.argval, tuple) and before.argval else before.argval
            if step.opname == "STORE_ATTR" and step.argval == name and owner != "self":
                return True
    return False


@database_check
def check_order_rows(source: SourceRules) -> Iterator[CheckMessage]:
    """Warn of the same for rules in the database."""
    yield from _unseen_statuses(filter(_asks_for_304, source.rules.values()))


def _unseen_statuses(rules: Iterable[Rule]) -> Iterator[CheckMessage]:
    if _is_above(CONDITIONAL, MIDDLEWARE):
        for rule in rules:
            message = (
                f"rule {rule.name!r} counts 200 and 304 differently, but ConditionalGetMiddleware makes 304 of 200 "
                "above ThrottleMiddleware, which sees 200"
            )
            yield warning("W040", message, f"List {MIDDLEWARE} before {CONDITIONAL}.")


def _asks_for_304(rule: Rule) -> bool:
    return rule.enabled and rule.counts(200) != rule.counts(304)


def _is_above(first: str, second: str) -> bool:
    """Return whether both are listed, or classes of their kinds, in this order."""
    places = place_of(first), place_of(second)
    return places[0] is not None and places[1] is not None and places[0] < places[1]
