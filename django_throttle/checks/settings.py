"""Checks of settings, each by itself and together, of the rules in the database, and of the Redis server."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.cache.backends.redis import RedisCache as DjangoRedisCache
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.signals import got_request_exception
from django.db import Error as DatabaseFailure
from django.dispatch import receiver
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache  # type: ignore[import-untyped]
from redis.exceptions import NoPermissionError

from django_throttle.conf import NAMES, Conf, no_dictionary, unknown
from django_throttle.core.headers import VERSIONS, X_VERSIONS
from django_throttle.core.options import functions, is_dotted, key_parts
from django_throttle.exceptions import Cause, InvalidSetting
from django_throttle.identity.address import Proxies, declared
from django_throttle.identity.keys import is_async, is_path
from django_throttle.observe.reports import load_hook
from django_throttle.rulebook import sources
from django_throttle.rulebook.sources import NO_RULES, SourceRules
from django_throttle.stores import get_store
from django_throttle.stores.addresses import REPLACED, Address, find_address, parse_address
from django_throttle.stores.failures import cause_of
from django_throttle.stores.timeouts import EVENTLET, is_patched_by_eventlet

logger = logging.getLogger("django_throttle")
DEFAULTS: Final = Conf()

Given = Mapping[str, Any]  # the setting DJANGO_THROTTLE


def settings_check(*tags: str, deploy: bool = False) -> Callable[..., Any]:
    """Register a function of the setting DJANGO_THROTTLE as a system check; not called where it is no dictionary."""

    def decorate(find: Callable[[Given], Iterable[CheckMessage]]) -> Any:
        def check(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
            given = getattr(settings, "DJANGO_THROTTLE", {})
            return list(find(given)) if isinstance(given, Mapping) else []

        check.__name__, check.__doc__ = find.__name__, find.__doc__
        return register(*(tags or ("django_throttle",)), deploy=deploy)(check)

    return decorate


def value_of(given: Given, name: str) -> Any:
    """What is given, or the default."""
    if name == "STORE" and "REDIS" in given:
        return given.get("STORE", "redis")
    return given.get(name, getattr(DEFAULTS, name))


def rules_of_settings() -> SourceRules:
    """The rules in settings; none where another check says why the settings cannot be read."""
    try:
        return sources.from_settings()
    except InvalidSetting:
        return NO_RULES


def rules_of_database(databases: Iterable[str] | None) -> SourceRules:
    """The rules and overrides in the database; none where it must not be asked or is not migrated yet."""
    try:
        return sources.from_database() if sources.alias() in (databases or ()) else NO_RULES
    except DatabaseFailure:
        return NO_RULES


def mistake(number: str, message: str) -> CheckMessage:
    """An error of this number."""
    return Error(message, id=f"django_throttle.{number}")


def warning(number: str, message: str, hint: str) -> CheckMessage:
    """A warning of this number, and what to do about it."""
    return Warning(message, hint=hint, id=f"django_throttle.{number}")


def is_number(value: object, kind: str = "") -> bool:
    """True for a number; a whole one where that is the kind."""
    return isinstance(value, int if kind == WHOLE else (int, float)) and not isinstance(value, bool)


WHOLE: Final = "whole number"
SECONDS: Final = "number of seconds"
# Setting: number of its check, least, most, and what it is.
NUMBERS: Final[dict[str, tuple[str, float, float, str]]] = {
    "RULES_POLL": ("E020", 0.05, 60, SECONDS),
    "RULES_REREAD": ("E021", 1, 3600, SECONDS),
    "DEADLINE": ("E022", 0.005, 10, SECONDS),
    "MAX_CONNECTIONS": ("E023", 1, 10_000, WHOLE),
    "PROCESSES": ("E081", 0, 1_000_000, WHOLE),
    "BEAT_INTERVAL": ("E024", 0.1, 300, SECONDS),
    "PROCESS_TTL": ("E025", 0.5, 3600, SECONDS),
    "CONNECTION_TTL": ("E026", 1, 86_400, SECONDS),
    "EXTEND_INTERVAL": ("E027", 0.5, 43_200, SECONDS),
    "IPV6_PREFIX": ("E028", 1, 128, WHOLE),
    "DAMPER_INTERVAL": ("E080", 0.5, 4, SECONDS),
    "SOCKET_ACCEPT_TIMEOUT": ("E072", 0, 3600, SECONDS),
    "SOCKET_IDLE_TIMEOUT": ("E073", 0, 604_800, SECONDS),
    "SOCKET_MAX_AGE": ("E074", 0, 31_536_000, SECONDS),
    "MAX_VIOLATIONS": ("E029", 0, 1_000_000, WHOLE),
    "RETRY_JITTER": ("E050", 0, 1, "share"),
}
TEXTS: Final = {"PREFIX": "E012", "KEY_SECRET": "E013"}
SWITCHES: Final = {
    "DATABASE_RULES": "E014",
    "RULES_WAIT": "E018",
    "AGENT": "E015",
    "SHADOW": "E060",
    "TESTS_IN_MEMORY": "E017",
}
CHOICES: Final = {
    "STORE": ("E010", ("memory", "redis")),
    "REFUSE_SOCKET": ("E016", ("http", "frame")),
    "NO_ADDRESS": ("E042", ("skip", "refuse")),
    "RATELIMIT_HEADERS": ("E051", tuple(VERSIONS)),
    "X_RATELIMIT_HEADERS": ("E052", X_VERSIONS),
}


def _unknown_names(given: Given) -> Iterator[CheckMessage]:
    for name in given:
        if name not in NAMES:
            yield mistake("E002", unknown(name))


def _choices(given: Given) -> Iterator[CheckMessage]:
    for name, (number, allowed) in CHOICES.items():
        if value_of(given, name) not in allowed:
            yield mistake(number, f"{name} must be one of {', '.join(allowed)}, not {value_of(given, name)!r}")


def _texts(given: Given) -> Iterator[CheckMessage]:
    for name, number in TEXTS.items():
        if not isinstance(value_of(given, name), str):
            yield mistake(number, f"{name} must be text, not {type(value_of(given, name)).__name__}")
    prefix = value_of(given, "PREFIX")
    if isinstance(prefix, str) and (not prefix or set(prefix) & set("{} \t\n")):
        yield mistake(TEXTS["PREFIX"], f"PREFIX must be text without spaces and braces, not {prefix!r}")


def _switches(given: Given) -> Iterator[CheckMessage]:
    for name, number in SWITCHES.items():
        if not isinstance(value_of(given, name), bool):
            yield mistake(number, f"{name} must be True or False, not {value_of(given, name)!r}")


def _numbers(given: Given) -> Iterator[CheckMessage]:
    for name, (number, least, most, kind) in NUMBERS.items():
        value = value_of(given, name)
        if not is_number(value, kind) or not least <= value <= most:
            yield mistake(number, f"{name} must be a {kind} from {least} to {most}, not {value!r}")


def _tell_keys(given: Given) -> Iterator[CheckMessage]:
    keys = value_of(given, "TELL_KEYS")
    is_list = isinstance(keys, Sequence) and not isinstance(keys, str)
    if not is_list or not all(isinstance(key, str) and is_dotted(key) for key in keys):
        yield mistake("E053", f"TELL_KEYS must be a list of keys that are dotted paths, not {keys!r}")


INTERVALS: Final = (("E033", "PROCESS_TTL", "BEAT_INTERVAL"), ("E034", "CONNECTION_TTL", "EXTEND_INTERVAL"))


def _redis(given: Given) -> Iterator[CheckMessage]:
    address = value_of(given, "REDIS")
    if not isinstance(address, str) or not address:
        yield mistake("E011", f"REDIS must be a CACHES alias or a redis:// URL, not {address!r}")
    elif "://" in address:
        yield from _connection_options(address, parse_address, "E030")
    elif value_of(given, "STORE") != "redis":
        return
    elif address not in settings.CACHES:
        present = ", ".join(settings.CACHES)
        yield mistake("E031", f"REDIS names {address!r}, which CACHES does not have; it has {present}")
    elif not _is_redis(settings.CACHES[address].get("BACKEND")):
        message = f"REDIS: the backend of the cache {address!r} is neither django-redis nor Django's for Redis"
        yield mistake("E032", message)
    else:
        yield from _connection_options(address, find_address, "E032", f" the cache {address!r}:")


def _is_redis(backend: object) -> bool:
    try:
        found = import_string(str(backend))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, (RedisCache, DjangoRedisCache))


def _connection_options(
    given: str, find: Callable[[str], Address], unusable: str, cache: str = ""
) -> Iterator[CheckMessage]:
    """Connection options that have no effect here; in CACHES one that serves the cache is no mistake."""
    try:
        found = find(given)
    except InvalidSetting as error:
        yield mistake(unusable, f"REDIS: {error}")
        return
    for reason in found.wrong:
        yield mistake("E036", f"REDIS:{cache} {reason}; the option is ignored")
    for name in found.replaced:
        message = f"REDIS:{cache} the option {name!r} has no effect on throttling: {REPLACED[name.lower()]}"
        yield Info(message, id="django_throttle.I036") if cache else Warning(message, id="django_throttle.W036")


def _intervals(given: Given) -> Iterator[CheckMessage]:
    """A process must be able to miss one beat before it counts as dead."""
    for number, lives, beats in INTERVALS:
        ttl, interval = value_of(given, lives), value_of(given, beats)
        if is_number(ttl) and is_number(interval) and ttl < 2 * interval:
            yield mistake(number, f"{lives} must be at least twice {beats}, not {ttl!r} against {interval!r}")


def _eventlet(given: Given) -> Iterator[CheckMessage]:
    if value_of(given, "STORE") == "redis" and is_patched_by_eventlet():
        yield mistake("E035", f"REDIS: {EVENTLET}")


def _hooks(given: Given) -> Iterator[CheckMessage]:
    paths = value_of(given, "HOOKS")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        yield mistake("E075", f"HOOKS must be a list of dotted paths, not {paths!r}")
        return
    for path in paths:
        if isinstance(path, str):
            yield from _check_function("HOOKS:", path, "E076", "E077", load_hook)
        else:
            yield mistake("E075", f"HOOKS: {path!r} is no dotted path")


def _check_function(
    what: str, path: str, unusable: str, awaited: str, load: Callable[[str], Any] = import_string
) -> Iterator[CheckMessage]:
    """A dotted path must lead to a function, by which calls are decided or reported, so a plain one."""
    try:
        found = load(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield mistake(unusable, f"{what} {path!r} cannot be imported ({error})")
        return
    if not callable(found):
        yield mistake(unusable, f"{what} {path!r} cannot be called")
    elif is_async(found):
        yield mistake(
            awaited, f"{what} {path!r} is async; it must be a plain function, as it is called during each call"
        )


def _rules(given: Given) -> Iterator[CheckMessage]:
    rules = value_of(given, "RULES")
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
        for path in functions(rule.key):
            yield from _check_function(f"rule {rule.name!r}: the key", path, "E005", "E006")
        if isinstance(rule.cost, str):
            yield from _check_function(f"rule {rule.name!r}: the cost", rule.cost, "E061", "E062")


# Headers in which a proxy says one address, however many there are in a row.
ONE_ADDRESS: Final = frozenset(("x-real-ip", "cf-connecting-ip", "true-client-ip", "fastly-client-ip", "x-client-ip"))
ADDRESS_KEYS: Final = frozenset(("ip", "user_or_ip", "api_key"))
_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _proxies(given: Given) -> Iterator[CheckMessage]:
    try:
        proxies = declared(value_of(given, "TRUSTED_PROXIES"))
    except InvalidSetting as error:
        yield mistake("E040", str(error))
        return
    header = value_of(given, "PROXY_HEADER")
    if not isinstance(header, str) or not re.fullmatch("[A-Za-z0-9-]+", header):
        yield mistake("E041", f"PROXY_HEADER must be the name of a header like X-Forwarded-For, not {header!r}")
        return
    yield from _proxy_warnings(given, proxies, header)


def _proxy_warnings(given: Given, proxies: Proxies, header: str) -> Iterator[CheckMessage]:
    if "PROXY_HEADER" in given and not proxies.declared:
        hint = "Name your proxies in TRUSTED_PROXIES, or remove PROXY_HEADER."
        yield warning("W010", "PROXY_HEADER is ignored because TRUSTED_PROXIES is empty", hint)
    if proxies.count > 1 and header.lower() in ONE_ADDRESS:
        message = f"PROXY_HEADER is ignored: {header} has one address, TRUSTED_PROXIES wants the {proxies.count}th"
        yield warning("W011", message, "Set TRUSTED_PROXIES to 1, or to the networks of the proxies.")


def _tenant(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "TENANT")
    if not isinstance(path, str) or (path and not _PATH.fullmatch(path)):
        yield mistake("E043", f"TENANT must be a path like user.tenant_id or shop.limits.tenant, not {path!r}")
    elif path and not is_path(path):
        yield from _check_function("TENANT", path, "E043", "E043")
    if path:
        return
    for rule in rules_of_settings().rules.values():
        if "tenant" in key_parts(rule.key) or any(one.startswith("tenant:") for one in rule.audience):
            yield mistake("E045", f"rule {rule.name!r} needs tenants: set TENANT to a path such as user.tenant_id")


def _user(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "USER_IDENT")
    if not isinstance(path, str) or (path and "." not in path):
        yield mistake("E044", f"USER_IDENT must be the path of a function like shop.limits.account, not {path!r}")
    elif path:
        yield from _check_function("USER_IDENT", path, "E044", "E044")


SETTING_CHECKS: Final = (
    *(_unknown_names, _choices, _texts, _switches, _numbers, _tell_keys),
    *(_rules, _redis, _intervals, _eventlet, _hooks, _proxies, _tenant, _user),
)


@register("django_throttle")
def check_settings(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Everything in DJANGO_THROTTLE, without a connection to the database or to Redis."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping):
        return [mistake("E001", no_dictionary(given))]
    return [message for check in SETTING_CHECKS for message in check(given)]


@receiver(got_request_exception, dispatch_uid="django_throttle.checks")
def log_errors(**_: object) -> None:
    """Log what is wrong with the settings, once: a server runs no checks, and a traceback does not name a setting."""
    if got_request_exception.disconnect(dispatch_uid="django_throttle.checks"):
        for message in filter(CheckMessage.is_serious, check_settings(None)):
            logger.error("DJANGO_THROTTLE is wrong: %s (%s)", message.msg, message.id)


@settings_check(Tags.security, deploy=True)
def check_store(given: Given) -> Iterator[CheckMessage]:
    """Counting in memory is for one process."""
    if value_of(given, "STORE") == "memory":
        message = "each server process counts in its own memory, so a limit of 100 admits 100 in each of them"
        yield warning("W001", message, 'Set DJANGO_THROTTLE["REDIS"].')


@settings_check(Tags.security, deploy=True)
def check_shadow(given: Given) -> Iterator[CheckMessage]:
    """SHADOW, which is meant for a trial, is easily left on."""
    if value_of(given, "SHADOW") is True:
        hint = 'Set DJANGO_THROTTLE["SHADOW"] to False when the rules are to hold again.'
        yield warning("W030", "SHADOW is on: rules only record, and nothing is refused", hint)


@settings_check(Tags.security, deploy=True)
def check_addresses(given: Given) -> Iterator[CheckMessage]:
    """Rules count by address, and nobody has said which proxies there are, which cannot be guessed."""
    if value_of(given, "TRUSTED_PROXIES") is not None:
        return
    found = [rule.name for rule in rules_of_settings().rules.values() if ADDRESS_KEYS.intersection(key_parts(rule.key))]
    if found:
        message = (
            f"rules count by address ({', '.join(found)}), and TRUSTED_PROXIES is not set: behind a proxy all clients "
            "would share one budget, and over a Unix socket these rules would apply only to users who are logged in"
        )
        hint = "Name your proxies; or set it to () where clients connect to the server themselves, or the server "
        yield warning("W012", message, hint + "reports their addresses by its own settings.")


@settings_check(Tags.security, deploy=True)
def check_shares(given: Given) -> Iterator[CheckMessage]:
    """How many processes share a limit while Redis is unavailable, before any of them has reached it."""
    if value_of(given, "STORE") != "redis" or value_of(given, "PROCESSES"):
        return
    found = [rule.name for rule in rules_of_settings().rules.values() if rule.on_store_failure == "local"]
    if found:
        message = "PROCESSES is not set: each process that starts while Redis is unavailable admits the whole limit of "
        hint = "Set it to the number of server processes on all hosts; or give these rules another on_store_failure."
        yield warning("W081", message + ", ".join(found), hint)


# Policies that evict keys with a time to live first, which all of ours have, or any key.
EVICTING_POLICIES: Final = ("volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random", "allkeys-random")


@settings_check(Tags.security, deploy=True)
def check_server(given: Given) -> Iterator[CheckMessage]:
    """Whether Redis takes our connections, and how it is configured. The only check that asks it.

    Silent where it does not answer, or forbids INFO.
    """
    try:
        store = None if settings.DEBUG else get_store()
    except InvalidSetting:
        return  # another check says so
    if store is None or not store.is_remote:
        return
    try:
        replication, memory = store.transport.server_state("replication"), store.transport.server_state("memory")
    except Exception as error:  # noqa: BLE001 - whatever Redis or the way to it has to complain of
        if cause_of(error) is Cause.CONFIG and not isinstance(error, NoPermissionError):
            hint = "Correct REDIS: until then the rules' failure policies decide every call."
            yield warning("W039", f"REDIS: the server refuses every call: {error}", hint)
        return
    if store.transport.has_sentinels and "min_slaves_good_slaves" not in replication:
        message = (
            "a Redis primary that a network failure cuts off together with some processes goes on counting for them: "
            "up to twice the limit passes for as long as that lasts"
        )
        hint = "Set min-replicas-to-write 1 and min-replicas-max-lag 10 on the primary and its replicas."
        yield warning("W037", message, hint)
    policy = _server_value(memory, "maxmemory_policy")
    if _server_value(memory, "maxmemory") not in ("", "0") and policy in EVICTING_POLICIES:
        message = f"Redis may evict counters and connection slots before anything else (maxmemory-policy {policy})"
        hint = "Use noeviction on a server of its own, or allkeys-lfu on one that is shared."
        yield warning("W038", message, hint)


def _server_value(text: str, name: str) -> str:
    found = re.search(rf"^{name}:(\S*)", text, re.MULTILINE)
    return found[1] if found else ""


@register(Tags.database)
def check_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Rules and overrides in the database that are skipped."""
    if not databases or check_settings(None):
        return []
    found = rules_of_database(databases)
    hint = "Correct it in the admin; until then it is not in force."
    rules = [warning("W002", f"rule {name!r} in the database: {what}", hint) for name, what in found.faults.items()]
    return rules + [warning("W065", f"override {number}: {what}", hint) for number, what in found.unfit.items()]
