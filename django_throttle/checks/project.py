"""Checks of how the project uses this app, outside the setting DJANGO_THROTTLE.

HTTP: middleware, REST framework's settings, the schema, rules of requests in flight. WebSockets: origins, messages that
are delayed, misspelt attributes of consumers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.urls import URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_throttle.checks.settings import (
    Given,
    mistake,
    rules_of_database,
    rules_of_settings,
    settings_check,
    value_of,
    warning,
)
from django_throttle.core import Rate, Rule
from django_throttle.exceptions import InvalidRate
from django_throttle.http.request_state import view_scope
from django_throttle.rulebook.sources import NO_RULES, SourceRules
from django_throttle.sockets.settings import misspelt_options

DAPHNE: Final = "daphne"


@settings_check(Tags.security, deploy=True)
def check_origins(given: Given) -> Iterator[CheckMessage]:
    """Consumers that know users by their cookies, and accept handshakes from any website's pages.

    Silent where it cannot be known: an application of the site's own may check the origin in its own way.
    """
    open_to_all = sorted({name for name, is_checked in _consumers(_application()) if not is_checked})
    if open_to_all:
        message = f"pages of any website can open {', '.join(open_to_all)} as a user who is logged in here"
        hint = "Put channels.security.websocket.AllowedHostsOriginValidator around the WebSocket application."
        yield warning("W042", message, hint)


@settings_check()
def check_delays(given: Given) -> Iterator[CheckMessage]:
    """Messages are delayed on daphne, which keeps reading meanwhile."""
    if DAPHNE in settings.INSTALLED_APPS:
        delaying = [f"rule {rule.name!r}" for rule in _delaying_rules(rules_of_settings())]
        consumers = {one.__name__ for one in _consumer_classes() if _delays(one.throttle_ladder)}
        delaying += [f"throttle_ladder of {name}" for name in sorted(consumers)]
        ladders = (door.settings for door in _limiting_middleware(_application()) if _delays(door.settings.ladder))
        delaying += [f"the ladder of ThrottleMiddleware, scope {one.scope!r}" for one in ladders]
        yield from _flood_warning(delaying)


@register(Tags.database)
def check_waiting_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """The same of rules in the database, only where it may be asked."""
    rows = rules_of_database(databases) if DAPHNE in settings.INSTALLED_APPS else NO_RULES
    return list(_flood_warning([f"rule {rule.name!r} in the database" for rule in _delaying_rules(rows)]))


def _delaying_rules(source: SourceRules) -> list[Rule]:
    return [
        rule for rule in source.rules.values() if rule.enabled and rule.action == "delay" and "message" in rule.events
    ]


def _flood_warning(delaying: list[str]) -> Iterator[CheckMessage]:
    if delaying:
        message = f"messages are delayed by {', '.join(delaying)}, but daphne keeps reading: a flood can exhaust memory"
        hint = (
            "Refuse them (action reject, no delay in the ladder), or serve WebSockets by a server that stops reading, "
            "such as uvicorn."
        )
        yield warning("W043", message, hint)


@settings_check()
def check_attributes(given: Given) -> list[CheckMessage]:
    """Warns of attributes of consumers that have no effect, with a name close to one that has."""
    return [
        Warning(f"{consumer.__name__}.{name} has no effect; did you mean {meant!r}?", id="django_throttle.W044")
        for consumer in _consumer_classes()
        for name, meant in misspelt_options(consumer)
    ]


def _application() -> Any:
    """The application for WebSockets; None where it cannot be found or loaded."""
    try:
        application = import_string(getattr(settings, "ASGI_APPLICATION", None) or "")
    except Exception:  # noqa: BLE001 - a module of the site's own may fail in any way, and says so when it is served
        return None
    return getattr(application, "application_mapping", {}).get("websocket")


def _consumers(app: Any, *, cookies: bool = False, limited: bool = False) -> Iterator[tuple[str, bool]]:
    """The limited consumers that find users by cookies, and whether their origin is checked, if that is known."""
    if app is None or find_spec("channels") is None:
        return
    from channels.routing import URLRouter
    from channels.security.websocket import OriginValidator
    from channels.sessions import CookieMiddleware, SessionMiddleware

    from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware

    if isinstance(app, URLRouter):
        for route in app.routes:
            yield from _consumers(getattr(route, "callback", None), cookies=cookies, limited=limited)
    elif isinstance(app, ThrottleMiddleware):
        yield from _consumers(app.app, cookies=cookies, limited=True)
    elif consumer := getattr(app, "consumer_class", None):
        if cookies and (limited or issubclass(consumer, ThrottledConsumerMixin)):
            yield consumer.__name__, False
    elif not isinstance(app, OriginValidator):
        knows = isinstance(app, (CookieMiddleware, SessionMiddleware))
        yield from _consumers(getattr(app, "inner", None), cookies=cookies or knows, limited=limited)


def socket_scopes() -> Iterator[str]:
    """The scopes of the consumers and the middleware that are loaded with the application for WebSockets."""
    for consumer in _consumer_classes():
        scope = consumer.throttle_scope
        yield scope if isinstance(scope, str) and scope else consumer.__name__
    for door in _limiting_middleware(_application()):
        yield door.settings.scope


def _limiting_middleware(app: Any) -> Iterator[Any]:
    """The middleware in this application that limits sockets."""
    if app is None or find_spec("channels") is None:
        return
    from django_throttle.channels import ThrottleMiddleware

    limits = isinstance(app, ThrottleMiddleware)
    if limits:
        yield app
    for route in getattr(app, "routes", ()):
        yield from _limiting_middleware(getattr(route, "callback", None))
    yield from _limiting_middleware(app.app if limits else getattr(app, "inner", None))


def _consumer_classes() -> Iterator[Any]:
    """The loaded classes with the mixin; loads the application for WebSockets first."""
    if find_spec("channels") is None:
        return
    _application()
    from django_throttle.channels import ThrottledConsumerMixin

    classes = ThrottledConsumerMixin.__subclasses__()
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        yield one


def _delays(ladder: object) -> bool:
    """Whether a ladder delays; False for a property, which only instances have."""
    return isinstance(ladder, Mapping) and bool(ladder.get("delay"))


MIDDLEWARE: Final = "django_throttle.middleware.ThrottleMiddleware"
ASGI_MIDDLEWARE: Final = "django_throttle.channels.ThrottleMiddleware"
AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
DECIDED_THROTTLE: Final = "django_throttle.drf.DecidedThrottle"
DROP_IN: Final = "django_throttle.drf.StoreRateThrottle"
SCHEMA: Final = "django_throttle.schema.ThrottleSchema"


@settings_check()
def check_schema(given: Given) -> Iterator[CheckMessage]:
    """drf-spectacular describes requests that can be refused, and does not know it."""
    if not apps.is_installed("drf_spectacular") or not _sees_all_requests():
        return
    if not _inherits([_drf_setting("DEFAULT_SCHEMA_CLASS", None)], SCHEMA):
        hint = (
            'Set REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] to "django_throttle.schema.AutoSchema"; a class of your own '
            "inherits from django_throttle.schema.ThrottleSchema first."
        )
        message = "the OpenAPI schema does not say which requests can be refused, and with what headers"
        yield warning("W020", message, hint)


@settings_check()
def check_middleware(given: Given) -> Iterator[CheckMessage]:
    """The middleware is listed once, after the one that knows the user, and is the one for requests."""
    listed = list(settings.MIDDLEWARE)
    if ASGI_MIDDLEWARE in listed:
        yield mistake("E070", f"{ASGI_MIDDLEWARE} wraps an ASGI application of sockets; in MIDDLEWARE use {MIDDLEWARE}")
    if MIDDLEWARE in listed and AUTHENTICATION in listed[listed.index(MIDDLEWARE) :]:
        message = "ThrottleMiddleware comes before AuthenticationMiddleware, so rules by user apply to nobody"
        yield warning("W040", message, f"List {MIDDLEWARE} after {AUTHENTICATION}.")
    if listed.count(MIDDLEWARE) > 1:
        yield warning("W041", "ThrottleMiddleware is in MIDDLEWARE more than once", "List it once.")


@settings_check()
def check_rates(given: Given) -> Iterator[CheckMessage]:
    """REST framework's rates can be read, where our throttles replace its own, for all views or for one."""
    messages = list(_unreadable_rates())
    if messages and (_inherits(_drf_setting("DEFAULT_THROTTLE_CLASSES", ()), DROP_IN) or _is_on_a_view(DROP_IN)):
        yield from messages


def _unreadable_rates() -> Iterator[CheckMessage]:
    for scope, rate in _drf_setting("DEFAULT_THROTTLE_RATES", {}).items():
        try:
            _ = rate is None or Rate.parse(rate)
        except InvalidRate as error:
            yield mistake("E071", f"DEFAULT_THROTTLE_RATES of REST framework, scope {scope!r}: {error}")


INFLIGHT_HINT: Final = (
    'List the event "inflight" to limit requests while they are being answered, or "connection" and "inflight" '
    "for sockets and requests in one count."
)
SOCKETS_ONLY: Final = ' Where only sockets are meant, write that it is for "connection".'
# ASGI_APPLICATION need not lead to all that is served.
NO_CONSUMER: Final = "no consumer that this check could find has the mixin"


@settings_check()
def check_inflight(given: Given) -> Iterator[CheckMessage]:
    """Concurrency rules in settings that count open sockets alone, where they seem to be meant for requests."""
    rules = [rule for rule in rules_of_settings().rules.values() if rule.enabled and rule.events == ("connection",)]
    says_events = {name for name, options in value_of(given, "RULES").items() if options.get("events")} if rules else ()
    for rule, why in _misapplied(rules, says_events):
        message = f"rule {rule.name!r} counts open WebSockets alone, {why}"
        yield warning("W045", message, INFLIGHT_HINT + SOCKETS_ONLY * (rule.name not in says_events))


def _misapplied(rules: Sequence[Rule], says_events: Collection[str]) -> Iterator[tuple[Rule, str]]:
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
    return _inherits(settings.MIDDLEWARE, MIDDLEWARE) or _inherits(
        _drf_setting("DEFAULT_THROTTLE_CLASSES", ()), DECIDED_THROTTLE
    )


def _sees_requests() -> bool:
    """Whether a door that goes by events decides requests; ``@throttle`` names its rule, whatever its events."""
    return _sees_all_requests() or _is_on_a_view(DECIDED_THROTTLE)


def _drf_setting(name: str, default: Any) -> Any:
    """One of REST framework's settings."""
    return getattr(settings, "REST_FRAMEWORK", {}).get(name, default)


def _inherits(found: Iterable[Any], wanted: str) -> bool:
    """Whether one of these classes, or dotted paths of classes, is of that kind; what cannot be imported is not."""
    return any(issubclass(one, import_string(wanted)) for one in map(_importable, found) if isinstance(one, type))


def _importable(found: Any) -> Any:
    try:
        return import_string(found) if isinstance(found, str) else found
    except ImportError:
        return None


def _is_on_a_view(throttle: str) -> bool:
    """Whether one of the site's views names a throttle of this kind."""
    return any(_inherits(_throttle_classes(view), throttle) for _, view in _views())


def _throttle_classes(view: Any) -> Sequence[Any]:
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
        yield from _routes_below(get_resolver(), "")


def _routes_below(resolver: URLResolver, spaces: str) -> Iterator[tuple[str | None, Any]]:
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            yield from _routes_below(one, f"{spaces}{one.namespace}:" if one.namespace else spaces)
        else:
            yield one.name and spaces + one.name, one.callback
