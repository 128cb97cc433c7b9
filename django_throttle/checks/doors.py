"""Checks of the HTTP doors: middleware, REST framework's settings, the schema, rules of requests in flight."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage
from django.urls import URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_throttle.checks.settings import Given, rules_given, site_check, value_of, warning, wrong
from django_throttle.checks.sockets import socket_scopes
from django_throttle.core import Rate, Rule
from django_throttle.exceptions import InvalidRate
from django_throttle.http.request_state import view_scope

MIDDLEWARE: Final = "django_throttle.middleware.ThrottleMiddleware"
SOCKETS: Final = "django_throttle.channels.ThrottleMiddleware"
AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
THROTTLE: Final = "django_throttle.drf.DecidedThrottle"
DROP_IN: Final = "django_throttle.drf.StoreRateThrottle"
SCHEMA: Final = "django_throttle.schema.ThrottleSchema"


@site_check()
def check_schema(given: Given) -> Iterator[CheckMessage]:
    """drf-spectacular describes requests that can be refused, and does not know it."""
    if not apps.is_installed("drf_spectacular") or not _sees_all_requests():
        return
    if not _inherits([_of_drf("DEFAULT_SCHEMA_CLASS", None)], SCHEMA):
        hint = (
            'Set REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] to "django_throttle.schema.AutoSchema"; a class of your own '
            "inherits from django_throttle.schema.ThrottleSchema first."
        )
        message = "the OpenAPI schema does not say which requests can be refused, and with what headers"
        yield warning("W020", message, hint)


@site_check()
def check_middleware(given: Given) -> Iterator[CheckMessage]:
    """The middleware is listed once, after the one that knows the user, and is the one for requests."""
    listed = list(settings.MIDDLEWARE)
    if SOCKETS in listed:
        yield wrong("E070", f"{SOCKETS} wraps an ASGI application of sockets; in MIDDLEWARE use {MIDDLEWARE}")
    if MIDDLEWARE in listed and AUTHENTICATION in listed[listed.index(MIDDLEWARE) :]:
        message = "ThrottleMiddleware comes before AuthenticationMiddleware, so rules by user apply to nobody"
        yield warning("W040", message, f"List {MIDDLEWARE} after {AUTHENTICATION}.")
    if listed.count(MIDDLEWARE) > 1:
        yield warning("W041", "ThrottleMiddleware is in MIDDLEWARE more than once", "List it once.")


@site_check()
def check_rates(given: Given) -> Iterator[CheckMessage]:
    """REST framework's rates can be read, where our throttles replace its own, for all views or for one."""
    messages = list(_unreadable_rates())
    if messages and (_inherits(_of_drf("DEFAULT_THROTTLE_CLASSES", ()), DROP_IN) or _is_on_a_view(DROP_IN)):
        yield from messages


def _unreadable_rates() -> Iterator[CheckMessage]:
    for scope, rate in _of_drf("DEFAULT_THROTTLE_RATES", {}).items():
        try:
            _ = rate is None or Rate.parse(rate)
        except InvalidRate as error:
            yield wrong("E071", f"DEFAULT_THROTTLE_RATES of REST framework, scope {scope!r}: {error}")


HINT: Final = (
    'List the event "inflight" to limit requests while they are being answered, or "connection" and "inflight" '
    "for sockets and requests in one count."
)
SOCKETS_ONLY: Final = ' Where only sockets are meant, write that it is for "connection".'
# ASGI_APPLICATION need not lead to all that is served.
NO_CONSUMER: Final = "no consumer that this check could find has the mixin"


@site_check()
def check_inflight(given: Given) -> Iterator[CheckMessage]:
    """Concurrency rules in settings that count open sockets alone, where they seem to be meant for requests."""
    rules = [rule for rule in rules_given().rules.values() if rule.enabled and rule.events == ("connection",)]
    says_events = {name for name, options in value_of(given, "RULES").items() if options.get("events")} if rules else ()
    for rule, why in _mistaken(rules, says_events):
        message = f"rule {rule.name!r} counts open WebSockets alone, {why}"
        yield warning("W045", message, HINT + SOCKETS_ONLY * (rule.name not in says_events))


def _mistaken(rules: Sequence[Rule], says_events: Collection[str]) -> Iterator[tuple[Rule, str]]:
    if not rules:
        return
    known = set(socket_scopes())
    views = set(_view_scopes()) - known
    for rule in rules:
        named = [pattern for pattern in rule.scopes if pattern != "*"]
        of_sockets = [pattern for pattern in named if any(_covers([pattern], scope) for scope in known)]
        if of_sockets and rule.name in says_events:
            continue
        others = [pattern for pattern in named if pattern not in of_sockets]
        if found := sorted(scope for scope in views if _covers(others, scope)):
            yield rule, f"and {found[0]!r} is the scope of a view, whose requests it does not limit"
        elif of_sockets:
            continue
        elif find_spec("channels") is None:
            yield rule, "and Channels, which serves them, is not installed"
        elif not (known or named or rule.name in says_events or rule.at_limit != "reject") and _sees_requests():
            yield rule, f"and {NO_CONSUMER}; it does not limit requests while they are being answered"


def _covers(patterns: list[str], scope: str) -> bool:
    return any(fnmatchcase(scope, pattern) for pattern in patterns)


def _sees_all_requests() -> bool:
    """Whether the middleware, or a throttle of ours for all views of REST framework, decides requests."""
    return _inherits(settings.MIDDLEWARE, MIDDLEWARE) or _inherits(_of_drf("DEFAULT_THROTTLE_CLASSES", ()), THROTTLE)


def _sees_requests() -> bool:
    """Whether a door that goes by events decides requests; ``@throttle`` names its rule, whatever its events."""
    return _sees_all_requests() or _is_on_a_view(THROTTLE)


def _of_drf(name: str, default: Any) -> Any:
    """One of REST framework's settings."""
    return getattr(settings, "REST_FRAMEWORK", {}).get(name, default)


def _inherits(found: Iterable[Any], wanted: str) -> bool:
    """Whether one of these classes, or dotted paths of classes, is of that kind; what cannot be imported is not."""
    return any(issubclass(one, import_string(wanted)) for one in map(_imported, found) if isinstance(one, type))


def _imported(found: Any) -> Any:
    try:
        return import_string(found) if isinstance(found, str) else found
    except ImportError:
        return None


def _is_on_a_view(throttle: str) -> bool:
    """Whether one of the site's views names a throttle of this kind."""
    return any(_inherits(_throttles(view), throttle) for _, view in _views())


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
