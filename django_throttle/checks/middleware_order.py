"""Checks of the order of middleware, where it breaks what rules say; see docs/howto/middleware.rst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dis import get_instructions
from itertools import chain, dropwhile, pairwise
from typing import Final

from django.conf import settings
from django.core.checks import CheckMessage

from django_throttle.checks.project import (
    DECIDED_THROTTLE,
    MIDDLEWARE,
    class_of_view,
    methods_of,
    routes,
    throttle_classes,
)
from django_throttle.checks.settings import (
    RawSettings,
    codes_of,
    codes_of_all,
    database_check,
    importable,
    inherits,
    place_of,
    rules_of_settings,
    settings_check,
    value_of,
    warning,
)
from django_throttle.core import Rule
from django_throttle.decorators import is_throttle
from django_throttle.http.view_layers import DISPATCH, applied_layers, closure_of
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
    for code in codes_of_all(importable(middleware)):
        for before, step in pairwise(get_instructions(code)):
            # From Python 3.13 on one step may load two variables, of which the last is the owner.
            owner = before.argval[-1] if isinstance(before.argval, tuple) and before.argval else before.argval
            if step.opname == "STORE_ATTR" and step.argval == name and owner != "self":
                return True
    return False


@settings_check()
def check_cached_views(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of views whose throttle is inside a cache, such as ``cache_page``."""
    has_middleware = place_of(MIDDLEWARE) is not None
    for name, view, route in routes():
        kind = class_of_view(view)
        around = [*applied_layers(view), *applied_layers(getattr(kind, DISPATCH, None))]
        methods = [list(applied_layers(method)) for method in methods_of(view).values()] or [[]]
        cached = [list(dropwhile(_is_no_cache, [*around, *layers])) for layers in methods]
        is_decided = not has_middleware and inherits(throttle_classes(view), DECIDED_THROTTLE)
        if is_decided and not all(map(_is_no_cache, around)):
            hint = f"Put cache_page around a method that answers, such as get, or add {MIDDLEWARE} to MIDDLEWARE."
            yield _cache_warning("a throttle class", name or route, hint)
        elif any(map(is_throttle, chain.from_iterable(cached))):
            yield _cache_warning("@throttle", name or route, "Put @throttle above cache_page.")


def _cache_warning(throttle: str, place: str, hint: str) -> CheckMessage:
    message = (
        f"{throttle} stands below cache_page at {place!r}: copies from the cache are not counted, and have the "
        "RateLimit field of another client"
    )
    return warning("W040", message, hint)


def _is_no_cache(layer: object) -> bool:
    """Return False for a decorator that Django made of the middleware of its cache, such as ``cache_page``."""
    cells = closure_of(layer)
    applied = closure_of(cells.get("_pre_process_request"))
    return not inherits([cells.get("middleware_class"), type(applied.get("middleware"))], FETCH)


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
    """Return True if both are listed, or classes of their kinds, in this order."""
    places = place_of(first), place_of(second)
    return places[0] is not None and places[1] is not None and places[0] < places[1]
