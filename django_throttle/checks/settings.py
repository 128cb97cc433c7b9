"""Checks of settings, each by itself and together, of the rules in the database, and of the Redis server."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import signature, unwrap
from itertools import chain
from time import monotonic
from types import CodeType, FunctionType
from typing import Any, Final, TypeGuard

from django.apps import AppConfig, apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.signals import got_request_exception
from django.db import Error as DatabaseFailure
from django.dispatch import receiver
from django.utils.module_loading import import_string
from redis.exceptions import ClusterCrossSlotError, NoPermissionError

from django_throttle.conf import NAMES, Conf, name_fault, type_fault
from django_throttle.core import Rule
from django_throttle.core.headers import HEADER_VERSIONS, X_VERSIONS
from django_throttle.core.options import is_dotted, key_parts
from django_throttle.costs.meter import MEASURES
from django_throttle.exceptions import Cause, InvalidSetting, StoreError
from django_throttle.identity.address import declared_proxies
from django_throttle.identity.keys import is_path
from django_throttle.identity.site_functions import is_async
from django_throttle.models.subjects import missing_groups
from django_throttle.observe import recorders
from django_throttle.observe.reports import load_hook
from django_throttle.rulebook import sources
from django_throttle.stores import get_store
from django_throttle.stores.redis.addresses import REPLACED, Address, find_address, parse_address
from django_throttle.stores.redis.failures import advice, cause_of
from django_throttle.stores.redis.timeouts import EVENTLET_FAULT, is_patched_by_eventlet

logger = logging.getLogger("django_throttle")
DEFAULTS: Final = Conf()

RawSettings = Mapping[str, Any]  # the setting DJANGO_THROTTLE
Finder = Callable[[RawSettings], Iterable[CheckMessage]]
Check = Callable[..., list[CheckMessage]]  # as Django calls it


def settings_check(*tags: str, deploy: bool = False) -> Callable[[Finder], Check]:
    """Register a function of the setting DJANGO_THROTTLE as a system check. It is called only with a dictionary."""

    def decorate(find: Finder) -> Check:
        def check(app_configs: Sequence[AppConfig] | None, **_: object) -> list[CheckMessage]:
            raw = getattr(settings, "DJANGO_THROTTLE", {})
            return list(find(raw)) if isinstance(raw, Mapping) else []

        return register(*(tags or ("django_throttle",)), deploy=deploy)(check)

    return decorate


def database_check(find: Callable[[sources.SourceRules], Iterable[CheckMessage]]) -> Check:
    """Register a function of the rules and overrides in the database as a check. It runs with ``--database``."""

    def check(
        app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_: object
    ) -> list[CheckMessage]:
        return list(find(rules_of_database(databases)))

    return register(Tags.database)(check)


def value_of(raw: RawSettings, name: str) -> Any:
    """Return the value of a setting as it is written, or the default."""
    if name == "STORE" and "REDIS" in raw:
        return raw.get("STORE", "redis")
    return raw.get(name, getattr(DEFAULTS, name))


def rules_of_settings(fits: Callable[[Rule], bool]) -> list[Rule]:
    """Return the rules in settings that fit. Return none if the settings are invalid, as another check says why."""
    try:
        return list(filter(fits, sources.from_settings().rules.values()))
    except InvalidSetting:
        return []


def rules_of_database(databases: Iterable[str] | None) -> sources.SourceRules:
    """Return the rules and overrides in the database; none if it is not to be queried, or not migrated."""
    try:
        return sources.from_database() if sources.alias() in (databases or ()) else sources.NO_RULES
    except DatabaseFailure:
        return sources.NO_RULES


def mistake(number: str, message: str) -> CheckMessage:
    return Error(message, id=f"django_throttle.{number}")


def warning(number: str, message: str, hint: str) -> CheckMessage:
    """Return a warning of this number. The hint is its remedy."""
    return Warning(message, hint=hint, id=f"django_throttle.{number}")


def inherits(kinds: Iterable[object], *wanted: str) -> bool:
    """Return True if a class, or a dotted path of one, is a subclass of a wanted one. Skip paths without a module."""
    classes = (kind for kind in map(importable, kinds) if isinstance(kind, type))
    return any(issubclass(kind, tuple(map(import_string, wanted))) for kind in classes)


def place_of(path: str) -> int | None:
    """Return the index in MIDDLEWARE of a class or of its first subclass. Return None if neither is listed."""
    return next(places_of(path), None)


def places_of(path: str) -> Iterator[int]:
    """Yield the indexes in MIDDLEWARE of a class, of its subclasses, and of what names it in its code.

    A function, or a class around another, may make the middleware.
    """
    for place, listed in enumerate(settings.MIDDLEWARE):
        middleware = importable(listed)
        # By name, as importing a class whose application is not installed may raise anything.
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in getattr(middleware, "__mro__", ())}
        named = chain.from_iterable(code.co_names for code in codes_of_all(middleware))
        if path in kinds or path.rpartition(".")[2] in named:
            yield place


def codes_of_all(middleware: object) -> Iterator[CodeType]:
    """Yield the code of a function, or of all methods of a class."""
    methods = [value for base in getattr(middleware, "__mro__", ()) for value in vars(base).values()]
    return chain.from_iterable(map(codes_of, methods or [middleware]))


def codes_of(value: object) -> Iterator[CodeType]:
    """Yield the code of a function, method or property, and of the functions that are defined in it."""
    names = ("fget", "__func__", "func")  # of a property, a class method and a cached property
    function = next((inner for name in names if (inner := getattr(value, name, None)) is not None), value)
    codes = [unwrap(function).__code__] if isinstance(function, FunctionType) else []
    while codes:
        code = codes.pop()
        yield code
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]


def importable(path: object) -> object:
    """Return the object at a dotted path, or None if it cannot be imported. Return anything but text as it is."""
    try:
        return import_string(path) if isinstance(path, str) else path
    except ImportError:
        return None


def is_number(value: object, types: type | tuple[type, ...] = (int, float)) -> bool:
    """Return True for a number of these types, and False for booleans."""
    return isinstance(value, types) and not isinstance(value, bool)


Wanted = tuple[str, Callable[[Any], bool]]  # a description of the valid values, and a test of a value


def _number(
    least: float, most: float, kind: str = "number of seconds", types: type | tuple[type, ...] = (int, float)
) -> Wanted:
    return f"a {kind} from {least} to {most}", lambda value: is_number(value, types) and least <= value <= most


def _one_of(*words: str) -> Wanted:
    return f"one of {', '.join(words)}", lambda value: value in words


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not set(value) & set("{} \t\n")


def _is_list_of_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(path, str) for path in value)


def _is_list_of_functions(value: object) -> bool:
    return _is_list_of_texts(value) and all(is_dotted(path) and callable(importable(path)) for path in value)


def _are_measures(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        name in MEASURES and is_number(most) and most >= 0 for name, most in value.items()
    )


def _is_attribute_path(value: object) -> bool:
    return isinstance(value, str) and (not value or all(map(str.isidentifier, value.split("."))))


WHOLE: Final = ("whole number", int)
SWITCH: Final[Wanted] = "True or False", lambda value: isinstance(value, bool)
#: The valid values of each setting, except those of TRUSTED_PROXIES.
VALUES: Final[dict[str, Wanted]] = {
    "STORE": _one_of("memory", "redis"),
    "REDIS": ("a CACHES alias or a redis:// URL", lambda value: isinstance(value, str) and bool(value)),
    "PREFIX": ("text without spaces and braces", _is_prefix),
    "KEY_SECRET": ("text", lambda value: isinstance(value, str)),
    "RULES": ("a dictionary of rules", lambda value: isinstance(value, Mapping)),
    "DATABASE_RULES": SWITCH,
    "HOOKS": ("a list of dotted paths", _is_list_of_texts),
    "LOG_COST_ABOVE": (f"numbers by {', '.join(MEASURES)}", _are_measures),
    "RECORD_IDENTS": SWITCH,
    "SHADOW": SWITCH,
    "TESTS": _one_of("memory", "redis", "unlimited"),
    "DEADLINE": _number(0.005, 10),
    "PROCESSES": _number(0, 1_000_000, *WHOLE),
    "PROCESS_TTL": _number(0.5, 3600),
    "IPV6_PREFIX": _number(1, 128, *WHOLE),
    "PROXY_HEADER": (
        "the name of a header like X-Forwarded-For",
        lambda value: isinstance(value, str) and re.fullmatch("[A-Za-z0-9-]+", value) is not None,
    ),
    "NO_ADDRESS": _one_of("skip", "refuse"),
    "TENANT": ("a path like user.tenant_id or shop.limits.tenant", _is_attribute_path),
    "RETRY_JITTER": _number(0, 1, "share"),
    "RATELIMIT_HEADERS": _one_of(*HEADER_VERSIONS),
    "X_RATELIMIT_HEADERS": _one_of(*X_VERSIONS),
    "TELL_KEYS": ("a list of keys that are dotted paths of functions", _is_list_of_functions),
    "SOCKET_IDLE_TIMEOUT": _number(0, 604_800),
}


def is_valid(raw: RawSettings, name: str) -> bool:
    """Return True if a setting has a valid value. For any other value there is a message already."""
    return VALUES[name][1](value_of(raw, name))


NAME: Final = "DJANGO_THROTTLE"


def _nearly_named(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of Django settings that are named nearly as ours, which nothing reads."""
    for name in dir(settings):
        is_near = name.isupper() and (name.startswith(f"{NAME}_") or get_close_matches(name, [NAME], cutoff=0.85))
        if is_near and name != NAME:
            hint = f'Move its value into the dictionary {NAME}, as DJANGO_THROTTLE = {{"RULES": …}}.'
            yield warning("W002", f"nothing reads the setting {name}; did you mean {NAME}?", hint)


def _unknown_names(raw: RawSettings) -> Iterator[CheckMessage]:
    for name in raw:
        if name not in NAMES:
            yield mistake("E002", name_fault(name))


def _values(raw: RawSettings) -> Iterator[CheckMessage]:
    for name, (wanted, _) in VALUES.items():
        if not is_valid(raw, name):
            value = value_of(raw, name)
            shown = type(value).__name__ if name in ("KEY_SECRET", "RULES") else repr(value)
            yield mistake("E001", f"{name} must be {wanted}, not {shown}")


REDIS_CACHES: Final = ("django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache")


def _redis(raw: RawSettings) -> Iterator[CheckMessage]:
    address, is_used = value_of(raw, "REDIS"), value_of(raw, "STORE") == "redis"
    if is_used and is_patched_by_eventlet():
        yield mistake("E039", f"REDIS: {EVENTLET_FAULT}")
    if not is_valid(raw, "REDIS"):
        return
    if "://" in address:
        yield from _connection_options(address, parse_address)
    elif not is_used:
        return
    elif address not in settings.CACHES:
        present = ", ".join(settings.CACHES)
        hint = f"; for the server write redis://{address}" if re.fullmatch(r"[\w.-]+:[0-9]+", address) else ""
        yield mistake("E039", f"REDIS names {address!r}, which CACHES does not have; it has {present}{hint}")
    elif not inherits([settings.CACHES[address].get("BACKEND")], *REDIS_CACHES):
        message = f"REDIS: the backend of the cache {address!r} is neither django-redis nor Django's for Redis"
        yield mistake("E039", message)
    else:
        yield from _connection_options(address, find_address, f" the cache {address!r}:")


def _connection_options(text: str, find: Callable[[str], Address], cache: str = "") -> Iterator[CheckMessage]:
    """Report an unusable address, and options that have no effect. Options of a cache may serve the cache."""
    try:
        server = find(text)
    except InvalidSetting as error:
        yield mistake("E039", f"REDIS: {error}")
        return
    for reason in server.wrong:
        yield mistake("E036", f"REDIS:{cache} {reason}; the option is ignored")
    for name in server.replaced:
        message = f"REDIS:{cache} the option {name!r} has no effect on throttling: {REPLACED[name.lower()]}"
        yield Info(message, id="django_throttle.I036") if cache else Warning(message, id="django_throttle.W036")


def _records(raw: RawSettings) -> Iterator[CheckMessage]:
    if raw.get("RECORD_IDENTS") is True and recorders.current is None:
        hint = 'Add "django_throttle.console" to INSTALLED_APPS, or leave RECORD_IDENTS out.'
        yield warning("W010", "RECORD_IDENTS has no effect: no installed app records decisions", hint)


def _hooks(raw: RawSettings) -> Iterator[CheckMessage]:
    for path in value_of(raw, "HOOKS") if is_valid(raw, "HOOKS") else ():
        yield from _check_function("HOOKS:", path, load_hook)


def _check_function(
    place: str, path: str, load: Callable[[str], object] = import_string, arguments: Sequence[str] = ()
) -> Iterator[CheckMessage]:
    """Report a dotted path that names no synchronous function.

    ``arguments`` are the names of those with which the function is called; they are not checked if empty.
    """
    try:
        function = load(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield mistake("E005", f"{place} {path!r} cannot be imported ({error})")
        return
    if not callable(function):
        yield mistake("E005", f"{place} {path!r} cannot be called")
    elif is_async(function):
        message = f"{place} {path!r} is async; it must be a plain function, as it is called during each call"
        yield mistake("E005", message)
    elif arguments and not takes(function, arguments):
        yield mistake("E005", f"{place} {path!r} must be a function of ({', '.join(arguments)})")


def takes(function: Callable[..., object], arguments: Sequence[str]) -> bool:
    """Return True if a function can be called with these arguments, or if its signature is unknown."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _rules(raw: RawSettings) -> Iterator[CheckMessage]:
    if not is_valid(raw, "RULES"):
        return
    rules = value_of(raw, "RULES")
    for name in rules:
        if not isinstance(name, str):
            yield mistake("E004", f"rule {name!r}: a name must be text")
    source = sources.from_mapping(rules)
    for name, reason in source.faults.items():
        yield mistake("E004", f"rule {name!r}: {reason}")
    for rule in source.rules.values():
        for option, path in rule.functions:
            arguments = ("request", "response") if option == "measure" else ("request",)
            label = "function of plans" if option == "plans" else option
            yield from _check_function(f"rule {rule.name!r}: the {label}", path, arguments=arguments)


# Headers in which a proxy writes one address, also behind other proxies.
ONE_ADDRESS: Final = frozenset((
    "cf-connecting-ip", "cf-connecting-ipv6", "cloudfront-viewer-address", "fastly-client-ip", "fly-client-ip",
    "true-client-ip", "x-azure-clientip", "x-azure-socketip", "x-client-ip", "x-real-ip",
))  # fmt: skip
ADDRESS_KEYS: Final = frozenset(("ip", "user_or_ip", "api_key"))


def _proxies(raw: RawSettings) -> Iterator[CheckMessage]:
    try:
        proxies = declared_proxies(value_of(raw, "TRUSTED_PROXIES"))
    except InvalidSetting as error:
        yield mistake("E001", str(error))
        return
    if not is_valid(raw, "PROXY_HEADER"):
        return
    header = value_of(raw, "PROXY_HEADER")
    if "PROXY_HEADER" in raw and not proxies.is_declared:
        hint = "Name your proxies in TRUSTED_PROXIES, or remove PROXY_HEADER."
        yield warning("W010", "PROXY_HEADER is ignored because TRUSTED_PROXIES is empty", hint)
    if proxies.count > 1 and header.lower() in ONE_ADDRESS:
        message = f"PROXY_HEADER is ignored: {header} has one address, and TRUSTED_PROXIES is {proxies.count}"
        yield warning("W010", message, "Set TRUSTED_PROXIES to 1, or to the networks of the proxies.")


def _tenant(raw: RawSettings) -> Iterator[CheckMessage]:
    if not is_valid(raw, "TENANT"):
        return
    path = value_of(raw, "TENANT")
    if not path:
        for rule in rules_of_settings(_needs_tenants):
            yield mistake("E012", f"rule {rule.name!r} needs tenants: set TENANT to a path such as user.tenant_id")
    elif not is_path(path):
        yield from _check_function("TENANT", path, arguments=("request",))
    elif missing := _missing_attribute(path):
        message = f"TENANT is {path!r}, but {missing}: rules by tenant apply to nobody"
        yield warning("W095", message, "Write the path of an attribute that is there.")


def _missing_attribute(path: str) -> str:
    """Return which attribute of a path is missing. Only attributes of the user model are known here."""
    first, _, rest = path.partition(".")
    if first != "user":
        near = [rest] if first == "request" else get_close_matches(first, ["user"], cutoff=0.8)
        return f"requests have no attribute {first!r} (did you mean {near[0]!r}?)" if near else ""
    second = rest.partition(".")[0] or "pk"
    model = get_user_model() if apps.is_installed("django.contrib.auth") else None
    return "" if model is None or hasattr(model, second) else f"{model.__name__} has no {second}"


def _needs_tenants(rule: Rule) -> bool:
    return "tenant" in key_parts(rule.key) or any(
        trait.startswith("tenant:") for trait in (*rule.audience, *rule.plans)
    )


SETTING_CHECKS: Final = (
    _nearly_named, _unknown_names, _values, _rules, _redis, _records, _hooks, _proxies, _tenant,
)  # fmt: skip


@register("django_throttle")
def check_settings(app_configs: Sequence[AppConfig] | None, **_: object) -> list[CheckMessage]:
    """Check all of DJANGO_THROTTLE, without a connection to the database or to Redis."""
    raw = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(raw, Mapping):
        return [mistake("E001", type_fault(raw))]
    return [message for check in SETTING_CHECKS for message in check(raw)]


@receiver(got_request_exception, dispatch_uid="django_throttle.checks")
def log_errors(**_: object) -> None:
    """Log the faults of the settings once. A server runs no checks, and a traceback does not name a setting."""
    if got_request_exception.disconnect(dispatch_uid="django_throttle.checks"):
        for message in filter(CheckMessage.is_serious, check_settings(None)):
            logger.error("DJANGO_THROTTLE is wrong: %s (%s)", message.msg, message.id)


@settings_check(Tags.security, deploy=True)
def check_deployment(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of settings for development that are a risk with many processes and real clients."""
    store = value_of(raw, "STORE")
    if store == "memory":
        message = "each server process counts in its own memory, so a limit of 100 admits 100 in each of them"
        yield warning("W001", message, 'Set DJANGO_THROTTLE["REDIS"].')
    if value_of(raw, "SHADOW") is True:
        hint = 'Set DJANGO_THROTTLE["SHADOW"] to False when the rules are to hold again.'
        yield warning("W030", "SHADOW is on: rules only record, and nothing is refused", hint)
    by_address = _names(lambda rule: bool(ADDRESS_KEYS.intersection(key_parts(rule.key))))
    if by_address and value_of(raw, "TRUSTED_PROXIES") is None:
        message = (
            f"rules count by address ({by_address}), and TRUSTED_PROXIES is not set: behind a proxy all clients "
            "would share one budget, and over a Unix socket these rules would apply only to users who are logged in"
        )
        hint = "Name your proxies; or set it to () where clients connect to the server themselves, or the server "
        yield warning("W012", message, hint + "reports their addresses by its own settings.")
    shared = _names(lambda rule: rule.on_store_failure == "local")
    if shared and store == "redis" and not value_of(raw, "PROCESSES"):
        message = "PROCESSES is not set: each process that starts while Redis is unavailable admits the whole limit of "
        hint = "Set it to the number of server processes on all hosts; or give these rules another on_store_failure."
        yield warning("W012", message + shared, hint)

    capped = _names(lambda rule: "connection" in rule.events)
    installed = [name for name in SILENT_SERVERS if find_spec(name) is not None]
    if capped and installed and not value_of(raw, "SOCKET_IDLE_TIMEOUT"):
        message = (
            f"on {' and '.join(installed)} a client that vanishes holds its slot until its process ends ({capped})"
        )
        yield warning("W012", message, "Set SOCKET_IDLE_TIMEOUT if the site is served so, and have clients ping.")


#: Servers that do not tell an application of a client from which nothing more comes.
SILENT_SERVERS: Final = ("hypercorn", "granian")


def _names(fits: Callable[[Rule], bool]) -> str:
    return ", ".join(rule.name for rule in rules_of_settings(fits))


# Policies that evict keys with a time to live first, which all of ours have, or any key.
EVICTING_POLICIES: Final = ("volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random", "allkeys-random")


def _unusable(place: str, replication: str, error: Exception) -> CheckMessage:
    """Return what is wrong with a server on which no call can succeed."""
    role = dict(re.findall(r"^(role|master_host|master_port):(\S*)", replication, re.MULTILINE))
    hint = "Correct REDIS: until then the rules' failure policies decide every call."
    if role.get("role") == "slave" and ("READONLY" in str(error) or "read only replica" in str(error)):
        what = f"it is a replica, which takes no writes, of {role['master_host']}:{role['master_port']}"
        hint = "Name the primary, or its Sentinels: redis+sentinel://host:26379/name/0."
    elif cause_of(error) is Cause.UNAVAILABLE:
        what = f"it does not answer ({error})"
        hint = f"Start Redis there, or correct REDIS. {hint.partition(': ')[2].capitalize()}"
    else:
        what = f"it refuses calls: {error}{'' if isinstance(error, StoreError) else advice(error)}"
    return warning("W039", f"REDIS: no call can succeed at {place}: {what}", hint)


@settings_check(Tags.security, deploy=True)
def check_server(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn where no call can succeed on Redis, or its configuration is risky. The only check that asks it."""
    try:
        store = get_store()
    except InvalidSetting:
        return  # another check says so
    if not store.is_remote:
        return
    began, connecting = monotonic(), None
    replication = memory = ""
    try:
        with suppress(NoPermissionError):  # INFO may be forbidden
            replication = store.transport.server_state("replication")
            connecting = monotonic() - began
            memory = store.transport.server_state("memory")
            if "cluster_enabled:1" in store.transport.server_state("cluster"):
                raise ClusterCrossSlotError("keys of one call are in several slots")
        # Every decision needs a script that writes.
        store.call("set_dedup_key", [store.process_key("check")], [store.now_arg(), 1])
    except Exception as error:  # noqa: BLE001 - whatever Redis or the way to it has to complain of
        yield _unusable(store.transport.place, replication, error)
        return
    if connecting is None:
        return
    if connecting > (deadline := store.transport.seconds):
        message = (
            f"connecting to Redis and one call take {connecting * 1000:.0f} ms, longer than DEADLINE "
            f"({deadline * 1000:.0f} ms): the first calls of each process are decided without it"
        )
        yield warning("W086", message, "Raise DEADLINE, or see what holds connections up: distance, TLS, credentials.")
    if store.transport.has_sentinels and "min_slaves_good_slaves" not in replication:
        message = (
            "a Redis primary that a network failure cuts off together with some processes goes on counting for them: "
            "up to twice the limit passes for as long as that lasts"
        )
        hint = "Set min-replicas-to-write 1 and min-replicas-max-lag 10 on the primary and its replicas."
        yield warning("W037", message, hint)
    values = dict(re.findall(r"^(maxmemory\w*):(\S*)", memory, re.MULTILINE))
    policy = values.get("maxmemory_policy")
    if values.get("maxmemory", "0") != "0" and policy in EVICTING_POLICIES:
        message = f"Redis may evict counters and connection slots before anything else (maxmemory-policy {policy})"
        hint = "Use noeviction on a server of its own, or allkeys-lfu on a shared server."
        yield warning("W037", message, hint)


@register(Tags.database)
def check_rows(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_: object
) -> list[CheckMessage]:
    """Warn of invalid rules and overrides in the database, and of groups that do not exist."""
    if not databases or check_settings(None):
        return []
    source = rules_of_database(databases)
    hint = "Correct it in the admin; until then it is not in force."
    rules = [warning("W004", f"rule {name!r} in the database: {what}", hint) for name, what in source.faults.items()]
    with suppress(DatabaseFailure):  # groups are not migrated yet
        for rule in [*rules_of_settings(lambda rule: True), *source.rules.values()]:
            texts = [f"rule {rule.name!r}: {missing}" for missing in missing_groups(rule)]
            rules += [warning("W088", text, "Add it, or correct the rule.") for text in texts]
    return rules + [
        warning("W004", f"override {number}: {what}", hint) for number, what in source.override_faults.items()
    ]
