"""Checks of the WebSocket doors: origins, messages that are delayed, misspelt attributes of consumers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.utils.module_loading import import_string

from django_throttle.checks.settings import Given, rows_found, rules_given, site_check, warning
from django_throttle.core import Rule
from django_throttle.rulebook.reader import NOTHING, Found
from django_throttle.sockets.settings import misspelt

DAPHNE: Final = "daphne"


@site_check(Tags.security, deploy=True)
def check_origins(given: Given) -> Iterator[CheckMessage]:
    """Consumers that know users by their cookies, and accept handshakes from any website's pages.

    Silent where it cannot be known: an application of the site's own may check the origin in its own way.
    """
    open_to_all = sorted({name for name, is_checked in _consumers(_application()) if not is_checked})
    if open_to_all:
        message = f"pages of any website can open {', '.join(open_to_all)} as a user who is logged in here"
        hint = "Put channels.security.websocket.AllowedHostsOriginValidator around the WebSocket application."
        yield warning("W042", message, hint)


@site_check()
def check_delays(given: Given) -> Iterator[CheckMessage]:
    """Messages are delayed on daphne, which keeps reading meanwhile."""
    if DAPHNE in settings.INSTALLED_APPS:
        delaying = [f"rule {rule.name!r}" for rule in _delaying_rules(rules_given())]
        consumers = {one.__name__ for one in _throttled() if _delays(one.throttle_ladder)}
        delaying += [f"throttle_ladder of {name}" for name in sorted(consumers)]
        ladders = (door.settings for door in _guards(_application()) if _delays(door.settings.ladder))
        delaying += [f"the ladder of ThrottleMiddleware, scope {one.scope!r}" for one in ladders]
        yield from _flood_warning(delaying)


@register(Tags.database)
def check_waiting_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """The same of rules in the database, only where it may be asked."""
    found = rows_found(databases) if DAPHNE in settings.INSTALLED_APPS else NOTHING
    return list(_flood_warning([f"rule {rule.name!r} in the database" for rule in _delaying_rules(found)]))


def _delaying_rules(found: Found) -> list[Rule]:
    rules = found.rules.values()
    return [rule for rule in rules if rule.enabled and rule.action == "delay" and "message" in rule.events]


def _flood_warning(delaying: list[str]) -> Iterator[CheckMessage]:
    if delaying:
        message = f"messages are delayed by {', '.join(delaying)}, but daphne keeps reading: a flood can exhaust memory"
        hint = (
            "Refuse them (action reject, no delay in the ladder), or serve WebSockets by a server that stops reading, "
            "such as uvicorn."
        )
        yield warning("W043", message, hint)


@site_check()
def check_names(given: Given) -> list[CheckMessage]:
    """Attributes of consumers that have no effect, and are nearly one that has."""
    return [
        Warning(f"{consumer.__name__}.{name} has no effect; did you mean {meant!r}?", id="django_throttle.W044")
        for consumer in _throttled()
        for name, meant in misspelt(consumer)
    ]


def _application() -> Any:
    """The application for WebSockets; None where it cannot be found or loaded."""
    try:
        found = import_string(getattr(settings, "ASGI_APPLICATION", None) or "")
    except Exception:  # noqa: BLE001 - a module of the site's own may fail in any way, and says so when it is served
        return None
    return getattr(found, "application_mapping", {}).get("websocket")


def _consumers(app: Any, *, cookies: bool = False, guarded: bool = False) -> Iterator[tuple[str, bool]]:
    """The consumers under rules that know users by cookies, and whether their origin is checked, if that is sure."""
    if app is None or find_spec("channels") is None:
        return
    from channels.routing import URLRouter
    from channels.security.websocket import OriginValidator
    from channels.sessions import CookieMiddleware, SessionMiddleware

    from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware

    if isinstance(app, URLRouter):
        for route in app.routes:
            yield from _consumers(getattr(route, "callback", None), cookies=cookies, guarded=guarded)
    elif isinstance(app, ThrottleMiddleware):
        yield from _consumers(app.app, cookies=cookies, guarded=True)
    elif consumer := getattr(app, "consumer_class", None):
        if cookies and (guarded or issubclass(consumer, ThrottledConsumerMixin)):
            yield consumer.__name__, False
    elif not isinstance(app, OriginValidator):
        knows = isinstance(app, (CookieMiddleware, SessionMiddleware))
        yield from _consumers(getattr(app, "inner", None), cookies=cookies or knows, guarded=guarded)


def socket_scopes() -> Iterator[str]:
    """The scopes of the consumers and the middleware that are loaded with the application for WebSockets."""
    for consumer in _throttled():
        scope = consumer.throttle_scope
        yield scope if isinstance(scope, str) and scope else consumer.__name__
    for door in _guards(_application()):
        yield door.settings.scope


def _guards(app: Any) -> Iterator[Any]:
    """The middleware in this application that limits sockets."""
    if app is None or find_spec("channels") is None:
        return
    from django_throttle.channels import ThrottleMiddleware

    is_guard = isinstance(app, ThrottleMiddleware)
    if is_guard:
        yield app
    for route in getattr(app, "routes", ()):
        yield from _guards(getattr(route, "callback", None))
    yield from _guards(app.app if is_guard else getattr(app, "inner", None))


def _throttled() -> Iterator[Any]:
    """The classes, of those loaded, that have the mixin: the application for WebSockets loads them."""
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
    """Not of a property, which is known only of instances."""
    return isinstance(ladder, Mapping) and bool(ladder.get("delay"))
