"""Checks of how the project uses this app: middleware, REST framework, consumers, channel layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from importlib.util import find_spec
from inspect import getattr_static, unwrap
from itertools import chain
from math import inf
from operator import attrgetter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Tags
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLResolver, get_resolver
from django.utils.functional import Promise, cached_property
from django.utils.module_loading import import_string

from django_throttle.checks.settings import (
    RawSettings,
    codes_of,
    database_check,
    importable,
    inherits,
    mistake,
    place_of,
    places_of,
    rules_of_settings,
    settings_check,
    takes,
    value_of,
    warning,
)
from django_throttle.core import Rule
from django_throttle.core.options import key_parts, misspellings, table
from django_throttle.core.scopes import matches, split_scopes
from django_throttle.decorators import (
    OPERATION,
    functions_without_ident,
    is_view_method,
    request_methods,
    wrapped_operations,
)
from django_throttle.exceptions import InvalidRate
from django_throttle.http.deferred import DEFERRAL, deferrals, pages_address
from django_throttle.http.request_state import view_attribute, view_scope
from django_throttle.http.view_layers import DISPATCH, closure_of, method_decorators, view_layers
from django_throttle.identity import is_async
from django_throttle.identity.site_functions import own_function
from django_throttle.later.site_queues import limited_tasks, queue_of
from django_throttle.later.task_budget import takes_slot
from django_throttle.rulebook import SourceRules
from django_throttle.websockets.settings import OPTIONS, misspelt_options

if TYPE_CHECKING:
    from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware

DAPHNE: Final = "daphne"


@settings_check(Tags.security, deploy=True)
def check_origins(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of consumers that identify users by cookies, and accept handshakes from pages of any website.

    Silent where it cannot be known: an application of the site's own may check the origin in its own way.
    """
    consumers = ((getattr(app, "consumer_class", None), around) for app, around in _parts(_application()))
    names = {consumer.__name__ for consumer, around in consumers if consumer and _is_open_to_all(consumer, around)}
    if names:
        message = f"pages of any website can open {', '.join(sorted(names))} as a user who is logged in here"
        hint = "Put channels.security.websocket.AllowedHostsOriginValidator around the WebSocket application."
        yield warning("W042", message, hint)


def _is_open_to_all(consumer: type, around: tuple[object, ...]) -> bool:
    """Return True if a limited consumer identifies users by cookies, and nothing around it checks the origin."""
    from channels.security.websocket import OriginValidator
    from channels.sessions import CookieMiddleware, SessionMiddleware

    from django_throttle.channels import ThrottledConsumerMixin

    def is_inside(*kinds: type) -> bool:
        return any(isinstance(outer, kinds) for outer in around)

    is_limited = issubclass(consumer, ThrottledConsumerMixin) or any(map(_is_middleware, around))
    return is_limited and is_inside(CookieMiddleware, SessionMiddleware) and not is_inside(OriginValidator)


@settings_check()
def check_delays(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of delayed messages on daphne, which keeps reading meanwhile."""
    if DAPHNE in settings.INSTALLED_APPS:
        delaying = [f"rule {rule.name!r}" for rule in rules_of_settings(_delays_messages)]
        consumers = {consumer.__name__ for consumer in _consumer_classes() if _delays(consumer.throttle_ladder)}
        delaying += [f"throttle_ladder of {name}" for name in sorted(consumers)]
        ladders = (middleware.settings for middleware in _limiting_middleware() if _delays(middleware.settings.ladder))
        delaying += [f"the ladder of ThrottleMiddleware, scope {settings.scope!r}" for settings in ladders]
        yield from _flood_warning(delaying)


@database_check
def check_waiting_rows(source: SourceRules) -> Iterator[CheckMessage]:
    """Warn of the same for rules in the database."""
    if DAPHNE in settings.INSTALLED_APPS:
        delaying = filter(_delays_messages, source.rules.values())
        yield from _flood_warning([f"rule {rule.name!r} in the database" for rule in delaying])


def _delays_messages(rule: Rule) -> bool:
    return rule.enabled and rule.action == "delay" and "message" in rule.events


def _flood_warning(delaying: list[str]) -> Iterator[CheckMessage]:
    if delaying:
        message = f"messages are delayed by {', '.join(delaying)}, but daphne keeps reading: a flood can exhaust memory"
        hint = (
            "Refuse them (action reject, no delay in the ladder), or serve WebSockets by a server that stops reading, "
            "such as uvicorn."
        )
        yield warning("W043", message, hint)


#: The attributes that a view may have for throttles; the last one is only for views of REST framework.
VIEW_ATTRIBUTES: Final = ("throttle_scope", "throttle_cost", "throttle_classes")
# As alike as a letter or two make them: a site may have attributes of its own that begin like these.
MIN_SIMILARITY: Final = 0.86


RENAME_HINT: Final = "Rename it to {0}, or to a name that is less like it."
RULE_HINT: Final = "Write {0} in a rule of the scope, or choose a name that is less like it."
VIEW_HINT: Final = "Write {0} at the class, in as_view() or in @action, or above @api_view: it is not read here."
DROP_IN_HINT: Final = "RuleThrottle goes by rules alone: write a rule, or derive the class from SimpleRateThrottle."
#: Valid attributes of a subclass of a drop-in. Classes of the packages in ``THROTTLE_PACKAGES`` are not checked.
DROP_IN_ATTRIBUTES: Final = frozenset((
    "THROTTLE_RATES", "cache_format", "get_cache_key", "get_ident", "get_rate", "parse_rate", "rate", "scope",
    "scope_attr", "throttle_failure", "throttle_success",
))  # fmt: skip
THROTTLE_PACKAGES: Final = ("builtins", "django_throttle", "rest_framework")
# Of a rule, which views, consumers and their attributes do not have; a view's own throttles often read a rate.
RULE_OPTIONS: Final = {name: name for name in table(Rule) if name not in ("name", "rate", "rates")} | {"ident": "key"}


@settings_check()
def check_attributes(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of attributes of consumers, views and throttles whose names are nearly those of options."""
    consumers = chain.from_iterable(map(_misspelt_at_consumer, _consumer_classes()))
    views = chain.from_iterable(_misspelt_at_view(view) for _, view in _views())
    throttles = chain.from_iterable(map(_misspelt_at_throttle, _throttles_in_use()))
    for owner, name, meant, hint in dict.fromkeys(chain(consumers, views, throttles)):
        yield warning("W044", f"{owner}.{name} has no effect; did you mean {meant}?", hint.format(meant))


#: Owner and name of an attribute, the option that was probably meant, and the pattern of the hint.
Misspelling = tuple[str, str, str, str]


def _misspelt_at_consumer(consumer: type) -> Iterator[Misspelling]:
    """Yield each misspelt attribute of the site's own classes of a consumer, unless a method of theirs reads it."""
    own = [
        base for base in consumer.__mro__ if base.__module__.partition(".")[0] not in ("django_throttle", "channels")
    ]
    for base in own:
        near = {name: (repr(meant), RENAME_HINT) for name, meant in misspelt_options(base)}
        near = dict(_of_rules(vars(base), OPTIONS)) | near
        yield from ((base.__name__, name, *how) for name, how in near.items() if not _reads(own, name))


def _misspelt_at_view(view: object) -> Iterator[Misspelling]:
    """Yield each misspelt attribute of a view or a method, unless a method of the view or of its throttles reads it."""
    kind = class_of_view(view)
    valid = VIEW_ATTRIBUTES if hasattr(kind, "throttle_classes") else VIEW_ATTRIBUTES[:-1]
    readers = [base for reader in (kind, *map(importable, throttle_classes(view))) for base in _bases(reader)]
    owners = [(getattr(owner, "__name__", repr(owner)), owner, RENAME_HINT) for owner in (view, *_bases(kind))]
    owners += [(name, method, VIEW_HINT) for name, method in _functions_of(view)]
    for owner, at, hint in owners:
        names = getattr(at, "__dict__", ())
        near = {name: (repr(meant), hint) for name, meant in misspellings(names, valid, MIN_SIMILARITY)}
        near = dict(_of_rules(names, valid)) | near
        yield from ((owner, name, *how) for name, how in near.items() if not _reads(readers, name))


def _misspelt_at_throttle(throttle: type) -> Iterator[Misspelling]:
    """Yield each attribute of a throttle made of ours that is misspelt, or that only drop-ins have.

    Not one that a method of the throttle reads.
    """
    own = [base for base in throttle.__mro__ if base.__module__.partition(".")[0] not in THROTTLE_PACKAGES]
    for base in own:
        if inherits([throttle], DROP_IN):
            near = {
                name: (repr(meant), RENAME_HINT) for name, meant in misspellings(vars(base), DROP_IN_ATTRIBUTES, 0.8)
            }
        elif inherits([throttle], RULE_THROTTLE):
            near = dict.fromkeys(DROP_IN_ATTRIBUTES & vars(base).keys(), ("the base SimpleRateThrottle", DROP_IN_HINT))
        else:
            near = {}
        yield from ((base.__name__, name, *how) for name, how in near.items() if not _reads(own, name))


def _of_rules(names: Iterable[str], valid: Collection[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name such as ``throttle_key``, with the option of a rule that it is made of."""
    for name in names:
        prefix, _, word = name.partition("_")
        near = get_close_matches(word, RULE_OPTIONS, n=1, cutoff=MIN_SIMILARITY) if prefix == "throttle" else ()
        if near and name not in valid:
            yield name, (f"the option {RULE_OPTIONS[near[0]]!r} of a rule", RULE_HINT)


def _bases(kind: object) -> tuple[type, ...]:
    return getattr(kind, "__mro__", ())


@settings_check()
def check_view_values(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of scopes, costs and throttles of views that nothing reads: of a wrong type, or at a method."""
    for fault in dict.fromkeys(chain.from_iterable(_ignored_values(view) for _, view in _views())):
        hint = "A scope is a text, a cost a whole number from 0 on or a plain function of the request."
        yield warning(
            "W044",
            fault,
            f"{hint} They, and throttles, belong to the class, as_view(), @action or the function of a route.",
        )


def _ignored_values(view: object) -> Iterator[str]:
    kind = class_of_view(view)
    owner, is_rest = getattr(kind or view, "__name__", repr(view)), hasattr(view, "cls")
    scope, cost = (view_attribute(view, name) for name in VIEW_ATTRIBUTES[:2])
    if (
        scope
        and not isinstance(scope, (str, Promise))
        and not (is_rest and isinstance(scope, INSTANCE_ATTRIBUTE_TYPES))
    ):
        yield f"{owner}.throttle_scope is {_shown(scope)}: it is ignored"
    if not (cost is None or (is_rest and isinstance(cost, INSTANCE_ATTRIBUTE_TYPES)) or _is_cost(kind, cost)):
        yield f"{owner}.throttle_cost is {_shown(cost)}: it is ignored, and each request counts 1"
    if not is_rest and view_attribute(view, VIEW_ATTRIBUTES[2]):
        yield f"{owner}.throttle_classes is ignored, as {owner} is not a view of REST framework"
    for name, function in _functions_of(view):
        for attribute in VIEW_ATTRIBUTES if "." in name else VIEW_ATTRIBUTES[:2]:
            value = getattr(function, "__dict__", {}).get(attribute)
            if value is not None and value != getattr(kind, attribute, None):  # @api_view takes a scope over
                where = "at a method of a view" if "." in name else "below @api_view"
                yield f"{name} has {attribute}, which nothing reads {where}"


#: Types of attributes whose value only an instance of the view has.
INSTANCE_ATTRIBUTE_TYPES: Final = (property, cached_property)


def _is_cost(kind: object, value: object) -> bool:
    """Return True for a cost that entry points can use: a number, or a plain function that takes the request."""
    if not callable(value):
        return type(value) is int and value >= 0
    is_method = isinstance(value, FunctionType) and getattr_static(kind, "throttle_cost", None) is value
    function = own_function(MethodType(value, kind)) if is_method else value
    return not is_async(function) and takes(function, ("request",))


def _shown(value: object) -> str:
    if isinstance(value, INSTANCE_ATTRIBUTE_TYPES):
        return "a property, which only an instance of the view has"
    return "no plain function of the request" if callable(value) else f"{value!r:.80}"


def _functions_of(view: object) -> Iterator[tuple[str, object]]:
    """Yield the methods by which a class answers, and the function below ``@api_view``, each with its name."""
    kind = class_of_view(view)
    for name, method in methods_of(view).items():
        yield f"{getattr(kind, '__name__', kind)}.{name}", method
        if getattr(method, "__qualname__", "").startswith("api_view.<locals>"):
            function = closure_of(method)["func"]
            yield getattr(function, "__name__", repr(function)), function


def _reads(classes: Iterable[type], name: str) -> bool:
    """Return True if a class has a method that names this attribute, or an attribute with its name as the value."""
    for value in chain.from_iterable(vars(base).values() for base in classes):
        if value == name if isinstance(value, str) else name in _names_in(value):
            return True
    return False


def _names_in(value: object) -> Iterator[object]:
    """Yield the names and constants in the code of a method, and of what is defined in it."""
    return chain.from_iterable((*code.co_names, *code.co_consts) for code in codes_of(value))


@settings_check()
def check_layers(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of layers of channels_redis that wait longer for a message than their connections for a reply."""
    for alias in (getattr(settings, "CHANNEL_LAYERS", None) or {}) if find_spec("channels") else ():
        if (times := _layer_times(alias)) and min(times[1:]) <= times[0]:
            message = (
                f"consumers on the channel layer {alias!r} end after {min(times[1:]):g} s without a message: that is "
                f"the socket_timeout of its connections, while the layer waits for {times[0]:g} s"
            )
            hint = 'Give each of its hosts a longer one, or none: {"address": "redis://…", "socket_timeout": None}.'
            yield warning("W046", message, hint)


def _layer_times(alias: str) -> list[float]:
    """Return the seconds that a layer waits for a message, and its connections to each host for a reply.

    Return an empty list if they are unknown.
    """
    from channels.layers import channel_layers

    try:
        layer: Any = channel_layers.make_backend(alias)
        # The default depends on redis-py's version: a connection knows it, and is not opened here.
        waits = [layer.create_pool(index).make_connection().socket_timeout for index in range(layer.ring_size)]
        return [layer.brpop_timeout, *(inf if wait is None else wait for wait in waits)]
    except Exception:  # noqa: BLE001 - another layer, or an invalid one, which fails when it is used
        return []


@settings_check()
def check_application(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn if the application for WebSockets cannot be loaded, which all checks of WebSockets need."""
    *_, error = _load_application()
    if error is not None:
        message = f"WebSockets are not checked, as ASGI_APPLICATION cannot be loaded: {type(error).__name__}: {error}"
        yield warning("W101", message, "Correct the module, or the setting. No server can load it either.")


def _application() -> object:
    """Return the application for WebSockets. Return None if there is none, or if it cannot be loaded."""
    return _load_application()[0]


def _load_application() -> tuple[object, str, Exception | None]:
    """Return the application for WebSockets, or None and why it is not known, with the error of its module.

    Without Channels it is known that there is none.
    """
    if find_spec("channels") is None:
        return None, "", None
    path = getattr(settings, "ASGI_APPLICATION", None)
    if not path:
        return None, "ASGI_APPLICATION is not set", None
    try:
        application = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        return None, "ASGI_APPLICATION cannot be loaded", error
    while not hasattr(application, "application_mapping") and (inner := _inside(application)) is not None:
        application = inner
    app = getattr(application, "application_mapping", {}).get("websocket")
    return app, "" if app is not None else f"no application for WebSockets can be seen in {path}", None


def doubt_of_sockets() -> str:
    """Return why some of the site's WebSockets may be unknown to checks; empty if there is no reason."""
    app, fault, _ = _load_application()
    for part, _ in _parts(app):
        is_open = hasattr(part, "consumer_class") or hasattr(part, "routes") or _inside(part) is not None
        if not is_open:
            return f"{getattr(part, '__qualname__', type(part).__name__)} in ASGI_APPLICATION cannot be looked into"
    return fault


def _inside(app: object) -> object:
    """Return what an ASGI application is around: as Channels and most others name it, or what its function calls."""
    if hasattr(app, "consumer_class"):
        return None
    named = [getattr(app, name, None) for name in ("inner", "app", "application")]
    of_function = [value for value in closure_of(app).values() if callable(value) and not isinstance(value, type)]
    return next((inner for inner in (*named, *of_function) if inner is not None), None)


def socket_scopes() -> Iterator[str]:
    """Yield the scopes of the consumers and the middleware in the application for WebSockets."""
    for consumer in _consumer_classes():
        scope = consumer.throttle_scope
        yield scope if isinstance(scope, str) and scope else consumer.__name__
    for middleware in _limiting_middleware():
        yield middleware.settings.scope


def scopes_without_mixin() -> Iterator[tuple[str, str]]:
    """Yield the ``throttle_scope`` of each consumer that no mixin reads, and the consumer's name."""
    limited = set(_consumer_classes())
    for app, _ in _parts(_application()):
        consumer: Any = getattr(app, "consumer_class", None)
        if consumer not in limited and isinstance(scope := getattr(consumer, "throttle_scope", None), str):
            yield scope, consumer.__name__


def _limiting_middleware() -> Iterator[ThrottleMiddleware]:
    return (app for app, _ in _parts(_application()) if _is_middleware(app))


def _parts(app: object, around: tuple[object, ...] = ()) -> Iterator[tuple[object, tuple[object, ...]]]:
    """Yield an ASGI application and each application inside it, with those around it."""
    if app is not None:
        yield app, around
        for inner in (*(getattr(route, "callback", None) for route in getattr(app, "routes", ())), _inside(app)):
            yield from _parts(inner, (*around, app))


def _is_middleware(app: object) -> TypeGuard[ThrottleMiddleware]:
    from django_throttle.channels import ThrottleMiddleware

    return isinstance(app, ThrottleMiddleware)


def _consumer_classes() -> Iterator[type[ThrottledConsumerMixin]]:
    """Yield the loaded consumers with the mixin. Load the application for WebSockets first."""
    if find_spec("channels") is None:
        return
    _application()
    from django_throttle.channels import ThrottledConsumerMixin

    classes = ThrottledConsumerMixin.__subclasses__()
    while classes:
        consumer = classes.pop()
        classes += consumer.__subclasses__()
        yield consumer


def _delays(ladder: object) -> bool:
    """Return True if a ladder delays. Return False for a property, which only instances have."""
    return isinstance(ladder, Mapping) and bool(ladder.get("delay"))


MIDDLEWARE: Final = "django_throttle.middleware.ThrottleMiddleware"
ASGI_MIDDLEWARE: Final = "django_throttle.channels.ThrottleMiddleware"
AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
DECIDED_THROTTLE: Final = "django_throttle.drf.DecidedThrottle"
DROP_IN: Final = "django_throttle.drf.SimpleRateThrottle"
RULE_THROTTLE: Final = "django_throttle.drf.RuleThrottle"


@settings_check()
def check_schema(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn if the schema of drf-spectacular does not describe the refusals."""
    if not apps.is_installed("drf_spectacular") or not _sees_all_requests():
        return
    if not inherits([_drf_setting("DEFAULT_SCHEMA_CLASS", None)], "django_throttle.contrib.schema.ThrottleSchema"):
        hint = (
            'Set REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] to "django_throttle.contrib.schema.AutoSchema"; a class of '
            "your own inherits from django_throttle.contrib.schema.ThrottleSchema first."
        )
        message = "the OpenAPI schema does not describe the 429 of limited views, nor its header fields"
        yield warning("W020", message, hint)


@settings_check()
def check_middleware(raw: RawSettings) -> Iterator[CheckMessage]:
    """Report the middleware for sockets in MIDDLEWARE, and ours above the user's or listed twice."""
    if ASGI_MIDDLEWARE in settings.MIDDLEWARE:
        yield mistake("E040", f"{ASGI_MIDDLEWARE} wraps an ASGI application of sockets; in MIDDLEWARE use {MIDDLEWARE}")
    ours, theirs = place_of(MIDDLEWARE), place_of(AUTHENTICATION)
    if ours is not None and theirs is not None and ours < theirs:
        message = "ThrottleMiddleware stands above AuthenticationMiddleware, so rules by user apply to nobody"
        yield warning("W040", message, f"List {MIDDLEWARE} after {AUTHENTICATION}.")
    yield from _unknown_callers(ours)
    if len(list(places_of(MIDDLEWARE))) > 1:
        yield warning("W040", "ThrottleMiddleware is in MIDDLEWARE more than once", "List it once.")


#: The middleware that sets what a key reads.
KEY_MIDDLEWARE: Final = {"user": AUTHENTICATION, "session": "django.contrib.sessions.middleware.SessionMiddleware"}


def _unknown_callers(ours: int | None) -> Iterator[CheckMessage]:
    """Warn of rules by user and by session where only our middleware applies them, and nothing before it knows who."""
    if ours is None or is_for_all_views(RULE_THROTTLE) or _is_on_a_view(RULE_THROTTLE):
        return
    for rule in rules_of_settings(lambda rule: rule.enabled and not {"request", "inflight"}.isdisjoint(rule.events)):
        for key in key_parts(rule.key):
            if key in KEY_MIDDLEWARE and place_of(KEY_MIDDLEWARE[key]) is None:
                message = f"rule {rule.name!r} counts by {key}, which nothing in MIDDLEWARE finds: it applies to nobody"
                hint = f"List {KEY_MIDDLEWARE[key]} before {MIDDLEWARE}. Ignore this if other middleware does its work."
                yield warning("W040", message, hint)


@settings_check()
def check_rates(raw: RawSettings) -> list[CheckMessage]:
    """Report invalid rates of REST framework, if a drop-in throttle reads them, and rates that no throttle reads."""
    if not _drf_setting("DEFAULT_THROTTLE_RATES", {}):
        return []
    from django_throttle.drf.drop_ins import read_rate

    wrong = []
    for scope, rate in _drf_setting("DEFAULT_THROTTLE_RATES", {}).items():
        try:
            read_rate(rate)
        except InvalidRate as error:
            wrong.append(mistake("E004", f"DEFAULT_THROTTLE_RATES of REST framework, scope {scope!r}: {error}"))
    if is_for_all_views(DROP_IN) or _is_on_a_view(DROP_IN):
        return wrong
    rates, views = _drf_setting("DEFAULT_THROTTLE_RATES", {}), [view for _, view in _views()]
    throttles = list(_throttles_in_use())
    are_rules = bool(throttles) and all(inherits([kind], RULE_THROTTLE) for kind in throttles)
    if any(rates.values()) and are_rules and not any(map(chooses_throttles, views)):
        message = f"DEFAULT_THROTTLE_RATES of REST framework limit nothing, as {RULE_THROTTLE} does not read them"
        return [warning("W089", message, f"Write them as rules, or use {DROP_IN.rpartition('.')[0]}.UserRateThrottle.")]
    return []


@settings_check()
def check_drop_ins(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of methods that read attributes of REST framework's throttles which the drop-ins do not have."""
    drop_ins = [kind for kind in _throttles_in_use() if inherits([kind], DROP_IN)]
    if not drop_ins:
        return
    from django_throttle.drf.drop_ins import unsupported_reads

    for throttle in drop_ins:
        for method, name, advice in unsupported_reads(throttle):
            message = f"{throttle.__name__}.{method} reads self.{name}, which the drop-in does not have: {advice}"
            hint = (
                "Each such call is an error 500. To tell clients what is left, set X_RATELIMIT_HEADERS, or read "
                "self.decision."
            )
            yield warning("W095", message, hint)


def _throttles_in_use() -> Iterator[type]:
    """Yield the throttles of all views; if a view chooses its own, also the drop-ins that are loaded."""
    views = [view for _, view in _views()]
    on_views = chain.from_iterable(map(throttle_classes, views))
    listed = dict.fromkeys(map(importable, [*_drf_setting("DEFAULT_THROTTLE_CLASSES", ()), *on_views]))
    if any(map(chooses_throttles, views)):
        from django_throttle.drf.drop_ins import loaded_drop_ins

        listed |= dict.fromkeys(kind for kind in loaded_drop_ins() if not kind.__subclasses__())
    return (kind for kind in listed if isinstance(kind, type))


@settings_check()
def check_inflight(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of concurrency rules that count only open sockets, and seem to be meant for requests."""
    rules = rules_of_settings(lambda rule: rule.enabled and rule.events == ("connection",))
    says_events = {name for name, options in value_of(raw, "RULES").items() if options.get("events")} if rules else ()
    for rule, why in _misapplied(rules, says_events):
        hint = (
            'List the event "inflight" to limit requests while they are being answered, or "connection" and "inflight" '
            "for sockets and requests in one count."
        )
        if rule.name not in says_events:
            hint += ' Where only sockets are meant, write that it is for "connection".'
        yield warning("W089", f"rule {rule.name!r} counts open WebSockets alone, {why}", hint)


@settings_check()
def check_status_pages(raw: RawSettings) -> Iterator[CheckMessage]:
    """Report a missing status page of deferred calls."""
    _ = list(_views())  # which imports the views
    if deferrals and getattr(settings, "ROOT_URLCONF", None):
        try:
            pages_address()
        except ImproperlyConfigured:
            rules = ", ".join(sorted({repr(deferral.rule) for deferral in deferrals}))
            yield mistake(
                "E082",
                f"views defer calls (rules {rules}), but their status page has no address, so each such call is an "
                'error; add path("later/", include("django_throttle.urls")) to urlpatterns',
            )


@settings_check()
def check_decorated_functions(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of functions under ``@throttle`` that are not views, and have no ``ident``: each call is an error."""
    answering = {unwrap(method) for _, view in _views() for method in methods_of(view).values()}
    of_no_view = {
        (rule, function.__qualname__): argument
        for rule, function, argument in request_methods
        if not is_view_method(function)
    }
    others = {
        key: where for key, (function, where) in functions_without_ident.items() if unwrap(function) not in answering
    }
    for (rule, name), where in sorted((others | of_no_view).items()):
        reason = "is a method of no view" if (rule, name) in of_no_view else "gets no request as its first argument"
        message = f"@throttle({rule!r}) is around {name}, which {reason}, and has no ident="
        caller = where or '"account:…"'
        hint = (
            f"In place of the decorator, ask in the function: if not allows({rule!r}, {caller}), of "
            "django_throttle.limiter; or write ident=, a text or a function of its arguments."
        )
        yield warning("W049", message, hint)


@settings_check()
def check_operations(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of ``@throttle`` above a decorator of Django Ninja, where it limits nothing."""
    _ = list(_views())  # which imports the views
    for rule, function, operation in wrapped_operations:
        if getattr(function, OPERATION, None) is operation:  # Ninja has not taken it
            message = (
                f"@throttle({rule!r}) stands above Django Ninja's decorator at {function.__name__}: it limits nothing"
            )
            yield warning("W089", message, "Put it below, next to the function.")


@settings_check()
def check_deferring_views(raw: RawSettings) -> Iterator[CheckMessage]:
    """Report decorators that may refuse a call below a decorator that defers it."""
    for _, view in _views():
        _decorate_methods(view)
    for rule, guard in sorted({(deferral.rule, guard) for deferral in deferrals for guard in deferral.guards}):
        yield mistake(
            "E082",
            f"@throttle({rule!r}, defer_to=…) stands above {guard}, which a deferred call would skip, so calls over "
            "the rate are refused; put @throttle below it, next to the function, or around the class",
        )


def _decorate_methods(view: object) -> None:
    """Apply the decorators of a class's methods that defer calls, as ``method_decorator`` does at each call."""
    kind = class_of_view(view)
    for layer in chain.from_iterable(map(view_layers, (getattr(kind, DISPATCH, None), *methods_of(view).values()))):
        decorators = method_decorators(layer) or ()
        if any(getattr(decorator, DEFERRAL, None) is not None for decorator in decorators):
            method = wraps(layer.__wrapped__)(partial(layer.__wrapped__))
            for decorator in decorators:
                method = decorator(method)


@settings_check()
def check_deferring_backends(raw: RawSettings) -> Iterator[CheckMessage]:
    """Report tasks that are to wait for their turn, and whose backend runs them at once."""
    _ = list(_views())  # which imports the views
    queues = {rule.name for rule in rules_of_settings(lambda rule: rule.enabled and rule.is_queue)}
    waiting = [(deferral.rule, deferral.task) for deferral in deferrals]
    waiting += [(rule, task) for rule, task in limited_tasks if rule in queues]
    for rule in sorted({rule for rule, task in waiting if not queue_of(task).can_wait(task)}):
        yield mistake(
            "E082",
            f"rule {rule!r} has a task wait for its turn, but the task's backend runs tasks at once, so each call over "
            "the rate is an error; choose one in TASKS that keeps run_after, such as django_tasks_db.DatabaseBackend",
        )


@settings_check()
def check_slots_of_tasks(raw: RawSettings) -> Iterator[CheckMessage]:
    """Report tasks for calls without a slot that take no slot themselves."""
    _ = list(_views())  # which imports the views
    rules = {rule.name for rule in rules_of_settings(lambda rule: rule.enabled and rule.defers_to_slots)}
    slotless = {each.rule for each in deferrals if each.rule in rules and not takes_slot(each.task, each.rule)}
    for rule in sorted(slotless):
        yield mistake(
            "E082",
            f"a view defers calls that find no slot of rule {rule!r} to a task that takes none, so nothing bounds how "
            f"many run, and each such call is an error; put @throttled_task({rule!r}, ident=…) around the task",
        )


@settings_check()
def check_deferring_rules(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of deferring rules without a deferring view, and of deferring views under other rules."""
    yield from _deferring_warnings(rules_of_settings(attrgetter("enabled")))


@database_check
def check_deferring_rows(source: SourceRules) -> Iterator[CheckMessage]:
    """Warn of the same for rules in the database."""
    yield from _deferring_warnings([rule for rule in source.rules.values() if rule.enabled])


def _deferring_warnings(rules: Sequence[Rule]) -> Iterator[CheckMessage]:
    if any(rule.action == "defer" for rule in rules):
        _ = list(_views())  # which imports the views
    deferred = {deferral.rule for deferral in deferrals}
    for rule in rules:
        if rule.action != "defer" and rule.name in deferred:
            message = f"a view names a task for calls over rule {rule.name!r}, but its action is {rule.action!r}"
            queue = "" if rule.holds_slots else 'the algorithm "leaky_bucket" and '
            hint = f'No call is deferred. Give the rule {queue}the action "defer".'
            yield warning("W082", message, hint)
        elif rule.action == "defer" and "request" in rule.events and rule.name not in deferred:
            message = (
                f"rule {rule.name!r} has action 'defer', but no view passes defer_to=…: calls run at once until the "
                "queue is full, then get a 429"
            )
            hint = (
                f'Put @throttle("{rule.name}", defer_to=…) around the view, or choose action "delay" or "reject". A '
                'rule that only tasks draw on has events ["task"].'
            )
            yield warning("W082", message, hint)


def _misapplied(rules: Sequence[Rule], says_events: Collection[str]) -> Iterator[tuple[Rule, str]]:
    if not rules:
        return
    known = set(socket_scopes())
    views = {scope for name, view in _views() if (scope := view_scope(view) or name)} - known
    for rule in rules:
        covered, excluded = split_scopes(rule.scopes)
        named = [pattern for pattern in covered if pattern != "*"]
        of_sockets = [pattern for pattern in named if any(matches([pattern], scope) for scope in known)]
        if of_sockets and rule.name in says_events:
            continue
        others = [pattern for pattern in named if pattern not in of_sockets]
        if of_views := sorted(scope for scope in views if matches(others, scope) and not matches(excluded, scope)):
            yield rule, f"and {of_views[0]!r} is the scope of a view, whose requests it does not limit"
        elif of_sockets:
            continue
        elif find_spec("channels") is None:
            yield rule, "and Channels, which serves them, is not installed"
        elif known or named or rule.name in says_events or rule.at_limit != "reject":
            continue
        elif _sees_all_requests() or _is_on_a_view(DECIDED_THROTTLE):
            # ASGI_APPLICATION need not lead to all that is served; @throttle names its rule, whatever its events.
            why = "and no consumer that this check could find has the mixin"
            yield rule, f"{why}; it does not limit requests while they are being answered"


def _sees_all_requests() -> bool:
    """Return True if the middleware, or a default throttle of REST framework, decides requests."""
    return place_of(MIDDLEWARE) is not None or is_for_all_views(DECIDED_THROTTLE)


def _drf_setting(name: str, default: object) -> Any:
    return getattr(settings, "REST_FRAMEWORK", {}).get(name, default)


def is_for_all_views(throttle: str) -> bool:
    """Return True if a default throttle of REST framework is of this kind."""
    return inherits(_drf_setting("DEFAULT_THROTTLE_CLASSES", ()), throttle)


def _is_on_a_view(throttle: str) -> bool:
    """Return True if a view of the site names a throttle of this kind."""
    return any(inherits(throttle_classes(view), throttle) for _, view in _views())


def throttle_classes(view: object) -> Sequence[object]:
    """Return the throttles of a view of REST framework."""
    options = getattr(view, "initkwargs", None) or {}
    classes = options.get("throttle_classes", getattr(getattr(view, "cls", None), "throttle_classes", ()))
    return classes if isinstance(classes, Sequence) else ()


def methods_of(view: object) -> dict[str, Callable[..., object]]:
    """Return the methods of a class-based view by which it answers: those of HTTP, and the actions of a viewset."""
    kind = class_of_view(view)
    names = (*getattr(kind, "http_method_names", ()), *(getattr(view, "actions", None) or {}).values())
    return {name: method for name in names if callable(method := getattr(kind, name, None))}


def needs_permission(view: object) -> bool:
    """Return True for a view of REST framework that does not answer everybody."""
    options = getattr(view, "initkwargs", None) or {}
    classes = options.get("permission_classes", getattr(getattr(view, "cls", None), "permission_classes", ()))
    return bool(classes) and not inherits(classes, "rest_framework.permissions.AllowAny")


def chooses_throttles(view: object) -> bool:
    """Return True if a view of REST framework has a ``get_throttles`` of its own."""
    method = getattr(getattr(view, "cls", None), "get_throttles", None)
    return method is not None and method.__module__ != "rest_framework.views"


def class_of_view(view: object) -> Any:
    """Return the class of a class-based view of Django or REST framework, or None."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _views() -> Iterator[tuple[str | None, object]]:
    """Yield the name and the view of each route of the site."""
    return ((name, view) for name, view, _ in routes())


def routes(
    resolver: URLResolver | None = None, spaces: str = "", before: str = ""
) -> Iterator[tuple[str | None, object, str]]:
    """Yield the name and the view of each route of the site, and the route as it is written."""
    if resolver is None and not getattr(settings, "ROOT_URLCONF", None):
        return
    for entry in (resolver or get_resolver()).url_patterns:
        route = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from routes(entry, f"{spaces}{entry.namespace}:" if entry.namespace else spaces, route)
        else:
            yield entry.name and spaces + entry.name, entry.callback, route
