"""Checks of settings, each by itself and together, of the rules in the database, and of the Redis server."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import signature
from time import monotonic
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.signals import got_request_exception
from django.db import Error as DatabaseFailure
from django.dispatch import receiver
from django.utils.module_loading import import_string
from redis.exceptions import ClusterCrossSlotError, NoPermissionError

from django_throttle.conf import NAMES, Conf, no_dictionary, unknown
from django_throttle.core import Rule
from django_throttle.core.headers import HEADER_VERSIONS, X_VERSIONS
from django_throttle.core.options import is_dotted, key_parts
from django_throttle.costs.meter import MEASURES
from django_throttle.exceptions import Cause, InvalidSetting, StoreError
from django_throttle.identity.address import declared_proxies
from django_throttle.identity.keys import is_async, is_path
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
    """Register a function of the setting DJANGO_THROTTLE as a system check; not called where it is no dictionary."""

    def decorate(find: Finder) -> Check:
        def check(app_configs: Sequence[AppConfig] | None, **_: object) -> list[CheckMessage]:
            raw = getattr(settings, "DJANGO_THROTTLE", {})
            return list(find(raw)) if isinstance(raw, Mapping) else []

        return register(*(tags or ("django_throttle",)), deploy=deploy)(check)

    return decorate


def value_of(raw: RawSettings, name: str) -> Any:
    """Return the value of a setting as it is written, or the default."""
    if name == "STORE" and "REDIS" in raw:
        return raw.get("STORE", "redis")
    return raw.get(name, getattr(DEFAULTS, name))


def rules_of_settings(fits: Callable[[Rule], bool]) -> list[Rule]:
    """The rules in settings that fit; none where another check says why the settings cannot be read."""
    try:
        return list(filter(fits, sources.from_settings().rules.values()))
    except InvalidSetting:
        return []


def rules_of_database(databases: Iterable[str] | None) -> sources.SourceRules:
    """The rules and overrides in the database; none where it must not be asked or is not migrated yet."""
    try:
        return sources.from_database() if sources.alias() in (databases or ()) else sources.NO_RULES
    except DatabaseFailure:
        return sources.NO_RULES


def mistake(number: str, message: str) -> CheckMessage:
    """An error of this number."""
    return Error(message, id=f"django_throttle.{number}")


def warning(number: str, message: str, hint: str) -> CheckMessage:
    """A warning of this number, and what to do about it."""
    return Warning(message, hint=hint, id=f"django_throttle.{number}")


def inherits(kinds: Iterable[object], *wanted: str) -> bool:
    """Whether one of these classes, or dotted paths of classes, is of such a kind; what cannot be imported is not."""
    classes = (kind for kind in map(importable, kinds) if isinstance(kind, type))
    return any(issubclass(kind, tuple(map(import_string, wanted))) for kind in classes)


def place_of(path: str) -> int | None:
    """Return the index in MIDDLEWARE of a class or of its first subclass. Return None if neither is listed."""
    for place, listed in enumerate(settings.MIDDLEWARE):
        # By name, as importing a class whose application is not installed may raise anything.
        if path in {f"{kind.__module__}.{kind.__qualname__}" for kind in getattr(importable(listed), "__mro__", ())}:
            return place
    return None


def importable(path: object) -> Any:
    """Return what a dotted path names, None where it cannot be imported; anything but a text as it is."""
    try:
        return import_string(path) if isinstance(path, str) else path
    except ImportError:
        return None


def is_number(value: object, of: type | tuple[type, ...] = (int, float)) -> bool:
    """True for a number of these types; True and False are none."""
    return isinstance(value, of) and not isinstance(value, bool)


Wanted = tuple[str, Callable[[Any], bool]]  # what a value must be, in words, and whether it is


def _number(
    least: float, most: float, kind: str = "number of seconds", of: type | tuple[type, ...] = (int, float)
) -> Wanted:
    return f"a {kind} from {least} to {most}", lambda value: is_number(value, of) and least <= value <= most


def _one_of(*known: str) -> Wanted:
    return f"one of {', '.join(known)}", lambda value: value in known


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not set(value) & set("{} \t\n")


def _is_list_of_functions(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(is_dotted(path) and callable(importable(path)) for path in value)


def _are_measures(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        name in MEASURES and is_number(most) and most >= 0 for name, most in value.items()
    )


WHOLE: Final = ("whole number", int)
SWITCH: Final[Wanted] = "True or False", lambda value: isinstance(value, bool)
# Setting: the number of its check, and what its value must be.
VALUES: Final[dict[str, tuple[str, Wanted]]] = {
    "STORE": ("E010", _one_of("memory", "redis")),
    "NO_ADDRESS": ("E042", _one_of("skip", "refuse")),
    "RATELIMIT_HEADERS": ("E051", _one_of(*HEADER_VERSIONS)),
    "X_RATELIMIT_HEADERS": ("E052", _one_of(*X_VERSIONS)),
    "PREFIX": ("E012", ("text without spaces and braces", _is_prefix)),
    "KEY_SECRET": ("E013", ("text", lambda value: isinstance(value, str))),
    "TELL_KEYS": ("E053", ("a list of keys that are dotted paths of functions", _is_list_of_functions)),
    "DATABASE_RULES": ("E014", SWITCH),
    "SHADOW": ("E060", SWITCH),
    "TESTS_IN_MEMORY": ("E017", SWITCH),
    "RECORD_IDENTS": ("E094", SWITCH),
    "LOG_COST_ABOVE": ("E079", (f"numbers by {', '.join(MEASURES)}", _are_measures)),
    "DEADLINE": ("E022", _number(0.005, 10)),
    "PROCESSES": ("E081", _number(0, 1_000_000, *WHOLE)),
    "PROCESS_TTL": ("E025", _number(0.5, 3600)),
    "IPV6_PREFIX": ("E028", _number(1, 128, *WHOLE)),
    "SOCKET_IDLE_TIMEOUT": ("E073", _number(0, 604_800)),
    "RETRY_JITTER": ("E050", _number(0, 1, "share")),
}


NAME: Final = "DJANGO_THROTTLE"


def _nearly_named(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of Django settings that are named nearly as ours, which nothing reads."""
    for name in dir(settings):
        is_near = name.isupper() and (name.startswith(f"{NAME}_") or get_close_matches(name, [NAME], cutoff=0.85))
        if is_near and name != NAME:
            hint = f"Write {NAME}, one dictionary that has everything, such as RULES."
            yield warning("W100", f"nothing reads the setting {name}; did you mean {NAME}?", hint)


def _unknown_names(raw: RawSettings) -> Iterator[CheckMessage]:
    for name in raw:
        if name not in NAMES:
            yield mistake("E002", unknown(name))


def _values(raw: RawSettings) -> Iterator[CheckMessage]:
    for name, (number, (wanted, fits)) in VALUES.items():
        value = value_of(raw, name)
        if not fits(value):
            shown = type(value).__name__ if name == "KEY_SECRET" else repr(value)
            yield mistake(number, f"{name} must be {wanted}, not {shown}")


REDIS_CACHES: Final = ("django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache")


def _redis(raw: RawSettings) -> Iterator[CheckMessage]:
    address, is_used = value_of(raw, "REDIS"), value_of(raw, "STORE") == "redis"
    if is_used and is_patched_by_eventlet():
        yield mistake("E035", f"REDIS: {EVENTLET_FAULT}")
    if not isinstance(address, str) or not address:
        yield mistake("E011", f"REDIS must be a CACHES alias or a redis:// URL, not {address!r}")
    elif "://" in address:
        yield from _connection_options(address, parse_address, "E030")
    elif not is_used:
        return
    elif address not in settings.CACHES:
        present = ", ".join(settings.CACHES)
        hint = f"; for the server write redis://{address}" if re.fullmatch(r"[\w.-]+:[0-9]+", address) else ""
        yield mistake("E031", f"REDIS names {address!r}, which CACHES does not have; it has {present}{hint}")
    elif not inherits([settings.CACHES[address].get("BACKEND")], *REDIS_CACHES):
        message = f"REDIS: the backend of the cache {address!r} is neither django-redis nor Django's for Redis"
        yield mistake("E032", message)
    else:
        yield from _connection_options(address, find_address, "E032", f" the cache {address!r}:")


def _connection_options(
    text: str, find: Callable[[str], Address], unusable: str, cache: str = ""
) -> Iterator[CheckMessage]:
    """Connection options that have no effect here; in CACHES one that serves the cache is no mistake."""
    try:
        server = find(text)
    except InvalidSetting as error:
        yield mistake(unusable, f"REDIS: {error}")
        return
    for reason in server.wrong:
        yield mistake("E036", f"REDIS:{cache} {reason}; the option is ignored")
    for name in server.replaced:
        message = f"REDIS:{cache} the option {name!r} has no effect on throttling: {REPLACED[name.lower()]}"
        yield Info(message, id="django_throttle.I036") if cache else Warning(message, id="django_throttle.W036")


def _records(raw: RawSettings) -> Iterator[CheckMessage]:
    if raw.get("RECORD_IDENTS") is True and recorders.current is None:
        hint = 'Add "django_throttle.console" to INSTALLED_APPS, or leave RECORD_IDENTS out.'
        yield warning("W103", "RECORD_IDENTS has no effect: no installed app records decisions", hint)


def _hooks(raw: RawSettings) -> Iterator[CheckMessage]:
    paths = value_of(raw, "HOOKS")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        yield mistake("E075", f"HOOKS must be a list of dotted paths, not {paths!r}")
        return
    for path in paths:
        if isinstance(path, str):
            yield from _check_function("HOOKS:", path, "E076", "E077", load_hook)
        else:
            yield mistake("E075", f"HOOKS: {path!r} is no dotted path")


def _check_function(
    what: str,
    path: str,
    unusable: str,
    awaited: str,
    load: Callable[[str], object] = import_string,
    arguments: Sequence[str] = (),
) -> Iterator[CheckMessage]:
    """A dotted path must lead to a function, by which calls are decided or reported, so a plain one.

    ``arguments`` are those that it gets, where it is one of the site's.
    """
    try:
        found = load(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield mistake(unusable, f"{what} {path!r} cannot be imported ({error})")
        return
    if not callable(found):
        yield mistake(unusable, f"{what} {path!r} cannot be called")
    elif is_async(found):
        message = f"{what} {path!r} is async; it must be a plain function, as it is called during each call"
        yield mistake(awaited, message)
    elif arguments and not takes(found, arguments):
        yield mistake(unusable, f"{what} {path!r} must be a function of ({', '.join(arguments)})")


def takes(function: Callable[..., object], arguments: Sequence[str]) -> bool:
    """Whether it can be called with so many arguments; True where that cannot be known, as of some built-in ones."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _rules(raw: RawSettings) -> Iterator[CheckMessage]:
    rules = value_of(raw, "RULES")
    if not isinstance(rules, Mapping):
        yield mistake("E003", f"RULES must be a dictionary of rules, not {type(rules).__name__}")
        return
    for name in rules:
        if not isinstance(name, str):
            yield mistake("E004", f"rule {name!r}: a name must be text")
    found = sources.from_mapping(rules)
    for name, reason in found.faults.items():
        yield mistake("E004", f"rule {name!r}: {reason}")
    for rule in found.rules.values():
        for option, path in rule.functions:
            numbers = ("E005", "E006") if option == "key" else ("E061", "E062")
            given_to = ("request", "response") if option == "measure" else ("request",)
            what = "function of plans" if option == "plans" else option
            yield from _check_function(f"rule {rule.name!r}: the {what}", path, *numbers, arguments=given_to)


# Headers in which a proxy says one address, however many there are in a row.
ONE_ADDRESS: Final = frozenset((
    "cf-connecting-ip", "cf-connecting-ipv6", "cloudfront-viewer-address", "fastly-client-ip", "fly-client-ip",
    "true-client-ip", "x-azure-clientip", "x-azure-socketip", "x-client-ip", "x-real-ip",
))  # fmt: skip
ADDRESS_KEYS: Final = frozenset(("ip", "user_or_ip", "api_key"))


def _proxies(raw: RawSettings) -> Iterator[CheckMessage]:
    try:
        proxies = declared_proxies(value_of(raw, "TRUSTED_PROXIES"))
    except InvalidSetting as error:
        yield mistake("E040", str(error))
        return
    header = value_of(raw, "PROXY_HEADER")
    if not isinstance(header, str) or not re.fullmatch("[A-Za-z0-9-]+", header):
        yield mistake("E041", f"PROXY_HEADER must be the name of a header like X-Forwarded-For, not {header!r}")
        return
    if "PROXY_HEADER" in raw and not proxies.is_declared:
        hint = "Name your proxies in TRUSTED_PROXIES, or remove PROXY_HEADER."
        yield warning("W010", "PROXY_HEADER is ignored because TRUSTED_PROXIES is empty", hint)
    if proxies.count > 1 and header.lower() in ONE_ADDRESS:
        message = f"PROXY_HEADER is ignored: {header} has one address, TRUSTED_PROXIES wants the {proxies.count}th"
        yield warning("W011", message, "Set TRUSTED_PROXIES to 1, or to the networks of the proxies.")


def _tenant(raw: RawSettings) -> Iterator[CheckMessage]:
    path = value_of(raw, "TENANT")
    if not isinstance(path, str) or (path and not all(map(str.isidentifier, path.split(".")))):
        yield mistake("E043", f"TENANT must be a path like user.tenant_id or shop.limits.tenant, not {path!r}")
    elif path and not is_path(path):
        yield from _check_function("TENANT", path, "E043", "E043", arguments=("request",))
    elif path and (lacking := _lacking(*path.split(".")[:2])):
        yield warning("W013", f"TENANT is {path!r}, and {lacking}", "Name an attribute, or rules count no tenant.")
    if path:
        return
    for rule in rules_of_settings(_needs_tenants):
        yield mistake("E045", f"rule {rule.name!r} needs tenants: set TENANT to a path such as user.tenant_id")


def _lacking(first: str, second: str = "pk") -> str:
    """What is not there of the beginning of a path; only who is logged in has attributes that are known here."""
    if first != "user":
        return f"requests have a user, and no {first}" if get_close_matches(first, ["user"], cutoff=0.8) else ""
    model = get_user_model() if apps.is_installed("django.contrib.auth") else None
    return "" if model is None or hasattr(model, second) else f"{model.__name__} has no {second}"


def _needs_tenants(rule: Rule) -> bool:
    return "tenant" in key_parts(rule.key) or any(one.startswith("tenant:") for one in (*rule.audience, *rule.plans))


def _user(raw: RawSettings) -> Iterator[CheckMessage]:
    path = value_of(raw, "USER_IDENT")
    if not isinstance(path, str) or (path and "." not in path):
        yield mistake("E044", f"USER_IDENT must be the path of a function like shop.limits.account, not {path!r}")
    elif path:
        yield from _check_function("USER_IDENT", path, "E044", "E044", arguments=("user",))


SETTING_CHECKS: Final = (
    _nearly_named, _unknown_names, _values, _rules, _redis, _records, _hooks, _proxies, _tenant,
    _user,
)  # fmt: skip


@register("django_throttle")
def check_settings(app_configs: Sequence[AppConfig] | None, **_: object) -> list[CheckMessage]:
    """Everything in DJANGO_THROTTLE, without a connection to the database or to Redis."""
    raw = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(raw, Mapping):
        return [mistake("E001", no_dictionary(raw))]
    return [message for check in SETTING_CHECKS for message in check(raw)]


@receiver(got_request_exception, dispatch_uid="django_throttle.checks")
def log_errors(**_: object) -> None:
    """Log what is wrong with the settings, once: a server runs no checks, and a traceback does not name a setting."""
    if got_request_exception.disconnect(dispatch_uid="django_throttle.checks"):
        for message in filter(CheckMessage.is_serious, check_settings(None)):
            logger.error("DJANGO_THROTTLE is wrong: %s (%s)", message.msg, message.id)


@settings_check(Tags.security, deploy=True)
def check_deployment(raw: RawSettings) -> Iterator[CheckMessage]:
    """What serves development or a trial, and is wrong or a risk with many processes and real clients."""
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
        yield warning("W081", message + shared, hint)

    capped = _names(lambda rule: "connection" in rule.events)
    installed = [name for name in SILENT_SERVERS if find_spec(name) is not None]
    if capped and installed and not value_of(raw, "SOCKET_IDLE_TIMEOUT"):
        message = (
            f"on {' and '.join(installed)} a client that vanishes holds its slot until its process ends ({capped})"
        )
        yield warning("W087", message, "Set SOCKET_IDLE_TIMEOUT if the site is served so, and have clients ping.")


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
        # What every decision needs: a script that writes.
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
        hint = "Use noeviction on a server of its own, or allkeys-lfu on one that is shared."
        yield warning("W038", message, hint)


@register(Tags.database)
def check_rows(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_: object
) -> list[CheckMessage]:
    """Rules and overrides in the database that are skipped, and groups that are not there."""
    if not databases or check_settings(None):
        return []
    found = rules_of_database(databases)
    hint = "Correct it in the admin; until then it is not in force."
    rules = [warning("W002", f"rule {name!r} in the database: {what}", hint) for name, what in found.faults.items()]
    with suppress(DatabaseFailure):  # groups are not migrated yet
        for rule in [*rules_of_settings(lambda rule: True), *found.rules.values()]:
            texts = [f"rule {rule.name!r}: {missing}" for missing in missing_groups(rule)]
            rules += [warning("W066", text, "Add it, or correct the rule.") for text in texts]
    return rules + [
        warning("W065", f"override {number}: {what}", hint) for number, what in found.override_faults.items()
    ]
