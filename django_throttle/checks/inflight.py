"""Concurrency rules of open WebSockets, where only requests in flight can be meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.urls import URLResolver, get_resolver

from django_throttle.checks.sockets import socket_scopes
from django_throttle.checks.told import THROTTLE, can_refuse, inherits
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.http.route import view_scope
from django_throttle.rulebook import sources

HINT: Final = (
    'List the event "inflight" to limit requests while they are being answered, or "connection" and "inflight" '
    'for sockets and requests in one count. Where only sockets are meant, write that it is for "connection".'
)


def inflight_messages() -> Iterator[CheckMessage]:
    """Concurrency rules in settings that list no event inflight, where it is requests that they would cover."""
    rules = [rule for rule in sources.from_settings().rules.values() if rule.enabled and rule.events == ("connection",)]
    for rule, why in _mistaken(rules):
        message = f"rule {rule.name!r} counts open WebSockets alone, {why}"
        yield Warning(message, hint=HINT, id="django_throttle.W045")


def _mistaken(rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    if not rules:
        return
    known = set(socket_scopes())
    views = set(_view_scopes()) - known
    for rule in rules:
        named = [pattern for pattern in rule.scopes if pattern != "*"]
        of_sockets = [pattern for pattern in named if any(_covers([pattern], scope) for scope in known)]
        if of_sockets and _says_events(rule):
            continue
        others = [pattern for pattern in named if pattern not in of_sockets]
        if found := sorted(scope for scope in views if _covers(others, scope)):
            yield rule, f"and {found[0]!r} is the scope of a view, whose requests it does not limit"
        elif of_sockets:
            continue
        elif find_spec("channels") is None:
            yield rule, "and Channels, which serves them, is not installed"
        elif not (known or named or _says_events(rule) or rule.at_limit != "reject") and _sees_requests():
            yield rule, "and no consumer has the mixin; it does not limit requests while they are being answered"


def _says_events(rule: Rule) -> bool:
    """Whether somebody wrote down what it is for; else it has what is usual, which was requests too, once."""
    options = conf().RULES.get(rule.name)
    return isinstance(options, Mapping) and bool(options.get("events"))


def _covers(patterns: list[str], scope: str) -> bool:
    return any(fnmatchcase(scope, pattern) for pattern in patterns)


def _sees_requests() -> bool:
    """Whether a door that goes by events looks at requests; ``@throttle`` names its rule, whatever that is for."""
    return can_refuse() or any(inherits(_throttles(view), THROTTLE) for _, view in _views())


def _throttles(view: Any) -> Sequence[Any]:
    given = getattr(view, "initkwargs", None) or {}
    found = given.get("throttle_classes") or getattr(getattr(view, "cls", None), "throttle_classes", None)
    return found if isinstance(found, Sequence) else ()


def _view_scopes() -> Iterator[str]:
    """The scopes of the site's views: their ``throttle_scope``, else the names of their routes."""
    for name, view in _views():
        if scope := view_scope(view) or name:
            yield scope


def _views() -> Iterator[tuple[str | None, Any]]:
    """The names of the site's routes, and their views."""
    if getattr(settings, "ROOT_URLCONF", None):
        yield from _under(get_resolver(), "")


def _under(resolver: URLResolver, spaces: str) -> Iterator[tuple[str | None, Any]]:
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            yield from _under(one, f"{spaces}{one.namespace}:" if one.namespace else spaces)
        else:
            yield one.name and spaces + one.name, one.callback
