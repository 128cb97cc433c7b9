"""Checks of the HTTP doors and of what clients are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.urls import URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_throttle.checks.configuration import Given, is_number, rules_given, value_of, wrong
from django_throttle.checks.sockets import socket_scopes
from django_throttle.conf import conf
from django_throttle.core import Rate, Rule
from django_throttle.core.options import is_dotted
from django_throttle.exceptions import InvalidRate
from django_throttle.http.request_state import view_scope

MIDDLEWARE: Final = "django_throttle.middleware.ThrottleMiddleware"
THROTTLE: Final = "django_throttle.drf.DecidedThrottle"
SCHEMA: Final = "django_throttle.schema.ThrottleSchema"


def _jitter(given: Given) -> Iterator[CheckMessage]:
    value = value_of(given, "RETRY_JITTER")
    if not is_number(value, False) or not 0 <= value <= 1:
        yield wrong("E050", f"RETRY_JITTER is a share from 0 to 1, not {value!r}")


def _keys(given: Given) -> Iterator[CheckMessage]:
    keys = value_of(given, "TELL_KEYS")
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(map(_is_key, keys)):
        yield wrong("E053", f"TELL_KEYS is a list of keys that are dotted paths, not {keys!r}")


def _is_key(key: object) -> bool:
    return isinstance(key, str) and is_dotted(key)


def schema_warnings() -> list[CheckMessage]:
    """Where drf-spectacular describes what can be refused, and has not been told so."""
    if not apps.is_installed("drf_spectacular") or not can_refuse() or _knows_of_refusals():
        return []
    message = "the OpenAPI schema does not say which requests can be refused, and with what headers"
    hint = (
        'Set REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] to "django_throttle.schema.AutoSchema"; a class of your own '
        "inherits from django_throttle.schema.ThrottleSchema first."
    )
    return [Warning(message, hint=hint, id="django_throttle.W020")]


def can_refuse() -> bool:
    """Whether the middleware, or a throttle of ours for all views of REST framework, looks at requests."""
    return inherits(settings.MIDDLEWARE, MIDDLEWARE) or inherits(of_drf("DEFAULT_THROTTLE_CLASSES", ()), THROTTLE)


def _knows_of_refusals() -> bool:
    return inherits([of_drf("DEFAULT_SCHEMA_CLASS", None)], SCHEMA)


def of_drf(name: str, default: Any) -> Any:
    """One of REST framework's settings."""
    return getattr(settings, "REST_FRAMEWORK", {}).get(name, default)


def inherits(found: Iterable[Any], wanted: str) -> bool:
    """Whether one of these classes, or dotted paths of some, is of that kind; what cannot be imported is not."""
    return any(issubclass(one, import_string(wanted)) for one in map(_imported, found) if isinstance(one, type))


def _imported(found: Any) -> Any:
    try:
        return import_string(found) if isinstance(found, str) else found
    except ImportError:
        return None


TOLD_CHECKS: Final = (_jitter, _keys)


DOOR: Final = "django_throttle.middleware.ThrottleMiddleware"
SOCKETS: Final = "django_throttle.channels.ThrottleMiddleware"
AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
DROP_IN: Final = "django_throttle.drf.StoreRateThrottle"


def middleware_messages() -> Iterator[CheckMessage]:
    """The middleware stands once, where a user is known, and is the one for requests."""
    listed = list(settings.MIDDLEWARE)
    if SOCKETS in listed:
        yield wrong("E070", f"{SOCKETS} goes around an ASGI application of sockets; MIDDLEWARE has {DOOR}")
    if DOOR in listed and AUTHENTICATION in listed[listed.index(DOOR) :]:
        message = "ThrottleMiddleware stands before AuthenticationMiddleware, so that rules by user meet nobody there"
        yield Warning(message, hint=f"List {DOOR} after {AUTHENTICATION}.", id="django_throttle.W040")
    if listed.count(DOOR) > 1:
        yield Warning("ThrottleMiddleware is in MIDDLEWARE more than once", id="django_throttle.W041")


def rate_messages() -> Iterator[CheckMessage]:
    """REST framework's rates can be read, where our throttles take the place of its own: for all views, or for one."""
    messages = list(_unreadable_rates())
    if messages and (inherits(of_drf("DEFAULT_THROTTLE_CLASSES", ()), DROP_IN) or _is_on_a_view(DROP_IN)):
        yield from messages


def _unreadable_rates() -> Iterator[CheckMessage]:
    for scope, rate in of_drf("DEFAULT_THROTTLE_RATES", {}).items():
        try:
            _ = rate is None or Rate.parse(rate)
        except InvalidRate as error:
            yield wrong("E071", f"DEFAULT_THROTTLE_RATES of REST framework, scope {scope!r}: {error}")


HINT: Final = (
    'List the event "inflight" to limit requests while they are being answered, or "connection" and "inflight" '
    "for sockets and requests in one count."
)
UNSAID: Final = ' Where only sockets are meant, write that it is for "connection".'
# One that ASGI_APPLICATION does not lead to may be served all the same.
NO_CONSUMER: Final = "no consumer that this check could find has the mixin"


def inflight_messages() -> Iterator[CheckMessage]:
    """Concurrency rules in settings that list no event inflight, where it is requests that they would cover."""
    rules = [rule for rule in rules_given().rules.values() if rule.enabled and rule.events == ("connection",)]
    for rule, why in _mistaken(rules):
        message = f"rule {rule.name!r} counts open WebSockets alone, {why}"
        yield Warning(message, hint=HINT + UNSAID * (not _says_events(rule)), id="django_throttle.W045")


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
            yield rule, f"and {NO_CONSUMER}; it does not limit requests while they are being answered"


def _says_events(rule: Rule) -> bool:
    """Whether somebody wrote down what it is for; else it has what is usual, which was requests too, once."""
    options = conf().RULES.get(rule.name)
    return isinstance(options, Mapping) and bool(options.get("events"))


def _covers(patterns: list[str], scope: str) -> bool:
    return any(fnmatchcase(scope, pattern) for pattern in patterns)


def _sees_requests() -> bool:
    """Whether a door that goes by events looks at requests; ``@throttle`` names its rule, whatever that is for."""
    return can_refuse() or _is_on_a_view(THROTTLE)


def _is_on_a_view(throttle: str) -> bool:
    """Whether one of the site's views names a throttle of this kind."""
    return any(inherits(_throttles(view), throttle) for _, view in _views())


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
