"""Checks of settings: each by itself, and what must fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.cache.backends.redis import RedisCache as DjangoRedisCache
from django.core.checks import CheckMessage, Error, Info, Warning
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache  # type: ignore[import-untyped]

from django_throttle.conf import NAMES, Conf, unknown
from django_throttle.core import Rule
from django_throttle.core.headers import VERSIONS, X_VERSIONS
from django_throttle.core.options import functions, parts
from django_throttle.exceptions import InvalidRate, InvalidRule, InvalidSetting, ThrottleError
from django_throttle.identity.address import Proxies, declared
from django_throttle.identity.keys import is_async, is_path
from django_throttle.observe.hooks import load
from django_throttle.rulebook import sources
from django_throttle.rulebook.reader import NOTHING, Found
from django_throttle.stores.addresses import REPLACED, Address, find_address, parse_address
from django_throttle.stores.timeouts import EVENTLET, is_patched_by_eventlet

DEFAULTS: Final = Conf()

Given = Mapping[str, Any]


def value_of(given: Given, name: str) -> Any:
    """What is given, or the default."""
    if name == "STORE" and "REDIS" in given:
        return given.get("STORE", "redis")
    return given.get(name, getattr(DEFAULTS, name))


def rules_given() -> Found:
    """What the settings say of rules; nothing where another check says why the settings cannot be read."""
    try:
        return sources.from_settings()
    except InvalidSetting:
        return NOTHING


def is_number(value: object, counts: bool) -> bool:
    """True for a number; a whole one where it counts something."""
    return isinstance(value, int if counts else (int, float)) and not isinstance(value, bool)


def wrong(number: str, message: str) -> CheckMessage:
    """An error of this number."""
    return Error(message, id=f"django_throttle.{number}")


# Setting: number of its check, least, most, and whether it counts something.
NUMBERS: Final[dict[str, tuple[str, float, float, bool]]] = {
    "RULES_POLL": ("E020", 0.05, 60, False),
    "RULES_REREAD": ("E021", 1, 3600, False),
    "DEADLINE": ("E022", 0.005, 10, False),
    "MAX_CONNECTIONS": ("E023", 1, 10_000, True),
    "PROCESSES": ("E081", 0, 1_000_000, True),
    "BEAT_INTERVAL": ("E024", 0.1, 300, False),
    "PROCESS_TTL": ("E025", 0.5, 3600, False),
    "CONNECTION_TTL": ("E026", 1, 86_400, False),
    "EXTEND_INTERVAL": ("E027", 0.5, 43_200, False),
    "IPV6_PREFIX": ("E028", 1, 128, True),
    "DAMPER_INTERVAL": ("E080", 0.5, 4, False),
    "SOCKET_ACCEPT_TIMEOUT": ("E072", 0, 3600, False),
    "SOCKET_IDLE_TIMEOUT": ("E073", 0, 604_800, False),
    "SOCKET_MAX_AGE": ("E074", 0, 31_536_000, False),
    "MAX_VIOLATIONS": ("E029", 0, 1_000_000, True),
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


def _names(given: Given) -> Iterator[CheckMessage]:
    for name in given:
        if name not in NAMES:
            yield wrong("E002", unknown(name))


def _choices(given: Given) -> Iterator[CheckMessage]:
    for name, (number, allowed) in CHOICES.items():
        if value_of(given, name) not in allowed:
            yield wrong(number, f"{name} is one of {', '.join(allowed)}, not {value_of(given, name)!r}")


def _texts(given: Given) -> Iterator[CheckMessage]:
    for name, number in TEXTS.items():
        if not isinstance(value_of(given, name), str):
            yield wrong(number, f"{name} is text, not {type(value_of(given, name)).__name__}")
    prefix = value_of(given, "PREFIX")
    if isinstance(prefix, str) and (not prefix or set(prefix) & set("{} \t\n")):
        yield wrong(TEXTS["PREFIX"], f"PREFIX is text without spaces and braces, not {prefix!r}")


def _switches(given: Given) -> Iterator[CheckMessage]:
    for name, number in SWITCHES.items():
        if not isinstance(value_of(given, name), bool):
            yield wrong(number, f"{name} is True or False, not {value_of(given, name)!r}")


def _numbers(given: Given) -> Iterator[CheckMessage]:
    for name, (number, least, most, counts) in NUMBERS.items():
        value = value_of(given, name)
        if not is_number(value, counts) or not least <= value <= most:
            kind = "whole number" if counts else "number of seconds"
            yield wrong(number, f"{name} is a {kind} from {least} to {most}, not {value!r}")


VALUE_CHECKS: Final = (_names, _choices, _texts, _switches, _numbers)


PAIRS: Final = (("E033", "PROCESS_TTL", "BEAT_INTERVAL"), ("E034", "CONNECTION_TTL", "EXTEND_INTERVAL"))


def _redis(given: Given) -> Iterator[CheckMessage]:
    address = value_of(given, "REDIS")
    if not isinstance(address, str) or not address:
        yield wrong("E011", f"REDIS is a CACHES alias or a redis:// URL, not {address!r}")
    elif "://" in address:
        try:
            found = parse_address(address)
        except InvalidSetting as error:
            yield wrong("E030", f"REDIS: {error}")
        else:
            yield from _options(found)
    elif value_of(given, "STORE") == "redis":
        yield from _alias(address)


def _alias(alias: str) -> Iterator[CheckMessage]:
    if alias not in settings.CACHES:
        yield wrong("E031", f"REDIS names {alias!r}, which CACHES does not have; it has {', '.join(settings.CACHES)}")
    elif not _is_redis(settings.CACHES[alias].get("BACKEND")):
        yield wrong(
            "E032", f"the cache {alias!r} is served by another backend than django-redis, or Django's for Redis"
        )
    else:
        try:
            found = find_address(alias)
        except InvalidSetting as error:
            yield wrong("E032", f"REDIS: {error}")
        else:
            yield from _options(found, alias)


def _is_redis(backend: object) -> bool:
    try:
        found = import_string(str(backend))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, (RedisCache, DjangoRedisCache))


def _options(found: Address, alias: str = "") -> Iterator[CheckMessage]:
    """Those that do not hold; in a cache's own entry a limit for the cache is no mistake."""
    place = f"REDIS: the cache {alias!r}" if alias else "REDIS"
    for reason in found.wrong:
        yield wrong("E036", f"{place}: {reason}; it is left out")
    for name in found.replaced:
        message = f"{place}: the option {name!r} says nothing to throttling: {REPLACED[name.lower()]}"
        yield Info(message, id="django_throttle.I036") if alias else Warning(message, id="django_throttle.W036")


def _pairs(given: Given) -> Iterator[CheckMessage]:
    """What lives must have two chances to say so before it is taken for dead."""
    for number, lives, beats in PAIRS:
        ttl, interval = value_of(given, lives), value_of(given, beats)
        if is_number(ttl, False) and is_number(interval, False) and ttl < 2 * interval:
            yield wrong(number, f"{lives} is at least twice {beats}, not {ttl!r} against {interval!r}")


def _eventlet(given: Given) -> Iterator[CheckMessage]:
    if value_of(given, "STORE") == "redis" and is_patched_by_eventlet():
        yield wrong("E035", f"REDIS: {EVENTLET}")


FIT_CHECKS: Final = (_redis, _pairs, _eventlet)


def _hooks(given: Given) -> Iterator[CheckMessage]:
    paths = value_of(given, "HOOKS")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        yield wrong("E075", f"HOOKS is a list of dotted paths, not {paths!r}")
        return
    for path in paths:
        yield from _hook(path) if isinstance(path, str) else [wrong("E075", f"HOOKS: {path!r} is no dotted path")]


def _hook(path: str) -> Iterator[CheckMessage]:
    try:
        hook = load(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong("E076", f"HOOKS: {path!r} cannot be imported ({error})")
        return
    if not callable(hook):
        yield wrong("E076", f"HOOKS: {path!r} cannot be called")
    elif is_async(hook):
        yield wrong("E077", f"HOOKS: {path!r} is async; a hook is a plain function, which is called for every decision")


HOOK_CHECKS: Final = (_hooks,)


def _rules(given: Given) -> Iterator[CheckMessage]:
    rules = value_of(given, "RULES")
    if not isinstance(rules, Mapping):
        yield wrong("E003", f"RULES is a dictionary of rules, not {type(rules).__name__}")
        return
    for name, options in rules.items():
        try:
            rule = Rule.from_options(name, options)
            for path in functions(rule.key):
                yield from _callable(rule, "key", path, ("E005", "E006"))
            yield from _callable(rule, "cost", rule.cost, ("E061", "E062"))
        except (InvalidRule, InvalidRate) as error:
            yield wrong("E004", f"rule {name!r}: {sources.sentence(str(name), error)}")


def _callable(rule: Rule, option: str, path: int | str, numbers: tuple[str, str]) -> Iterator[CheckMessage]:
    if not isinstance(path, str) or "." not in path:
        return
    named = f"rule {rule.name!r}: the {option} {path!r}"
    try:
        found = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong(numbers[0], f"{named} cannot be imported ({error})")
        return
    if not callable(found):
        yield wrong(numbers[0], f"{named} cannot be called")
    elif is_async(found):
        yield wrong(numbers[1], f"{named} is async; it must be a plain function, which is called for every request")


RULE_CHECKS: Final = (_rules,)


# Headers in which a proxy says one address, however many there are in a row.
SINGLE: Final = frozenset(("x-real-ip", "cf-connecting-ip", "true-client-ip", "fastly-client-ip", "x-client-ip"))
BY_ADDRESS: Final = frozenset(("ip", "user_or_ip", "api_key"))
_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _proxies(given: Given) -> Iterator[CheckMessage]:
    try:
        proxies = declared(value_of(given, "TRUSTED_PROXIES"))
    except InvalidSetting as error:
        yield wrong("E040", str(error))
        return
    header = value_of(given, "PROXY_HEADER")
    if not isinstance(header, str) or not re.fullmatch("[A-Za-z0-9-]+", header):
        yield wrong("E041", f"PROXY_HEADER is the name of a header like X-Forwarded-For, not {header!r}")
        return
    yield from _fitting(given, proxies, header)


def _fitting(given: Given, proxies: Proxies, header: str) -> Iterator[CheckMessage]:
    if "PROXY_HEADER" in given and not proxies.declared:
        message = f"nobody is believed what PROXY_HEADER {header!r} says, as TRUSTED_PROXIES names no proxy"
        yield Warning(message, id="django_throttle.W010")
    if proxies.count > 1 and header.lower() in SINGLE:
        message = f"{header} says one address, so there is no {proxies.count}th from the right, and it is never used"
        hint = "Set TRUSTED_PROXIES to 1, or to the networks of the proxies."
        yield Warning(message, hint=hint, id="django_throttle.W011")


def _tenant(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "TENANT")
    if path == "":
        return
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        yield wrong("E043", f"TENANT is a path like user.tenant_id or shop.limits.tenant, not {path!r}")
    elif not is_path(path):
        yield from _function("E043", "TENANT", path)


def _user(given: Given) -> Iterator[CheckMessage]:
    path = value_of(given, "USER_IDENT")
    if path == "":
        return
    if not isinstance(path, str) or "." not in path:
        yield wrong("E044", f"USER_IDENT is the path of a function like shop.limits.account, not {path!r}")
    else:
        yield from _function("E044", "USER_IDENT", path)


def _function(number: str, setting: str, path: str) -> Iterator[CheckMessage]:
    try:
        found = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong(number, f"{setting} {path!r} cannot be imported ({error})")
        return
    if not callable(found) or is_async(found):
        yield wrong(number, f"{setting} {path!r} is no plain function, which can be called for every request")


def _tenants(given: Given) -> Iterator[CheckMessage]:
    if value_of(given, "TENANT"):
        return
    for rule in rules_in(given):
        if "tenant" in parts(rule.key) or any(one.startswith("tenant:") for one in rule.audience):
            yield wrong("E045", f"rule {rule.name!r} asks for the tenant, and TENANT does not say who that is")


def rules_in(given: Given) -> Iterator[Rule]:
    """The rules in settings that make sense."""
    rules = value_of(given, "RULES")
    for name, options in rules.items() if isinstance(rules, Mapping) else ():
        try:
            yield Rule.from_options(name, options)
        except ThrottleError:
            pass  # another check says so


def unsaid(given: Given) -> Iterator[CheckMessage]:
    """For production: whether there is a proxy is not for us to guess."""
    if value_of(given, "TRUSTED_PROXIES") is not None:
        return
    found = [rule.name for rule in rules_in(given) if BY_ADDRESS.intersection(parts(rule.key))]
    if found:
        message = (
            f"rules count by address ({', '.join(found)}), and TRUSTED_PROXIES is not set: behind a proxy all clients "
            "would share one budget, and over a Unix socket these rules would apply to nobody who is not logged in"
        )
        hint = "Name your proxies; or set it to () where clients connect to the server themselves, or the server "
        hint += "reports their addresses by its own settings."
        yield Warning(message, hint=hint, id="django_throttle.W012")


def shares(given: Given) -> Iterator[CheckMessage]:
    """For production: how many processes share a limit while Redis is away, before any of them has reached it."""
    if value_of(given, "STORE") != "redis" or value_of(given, "PROCESSES"):
        return
    found = [rule.name for rule in rules_in(given) if rule.on_store_failure == "local"]
    if found:
        message = (
            f"PROCESSES is not set: processes that start while Redis is away each admit the whole limit of "
            f"{', '.join(found)}"
        )
        hint = "Set it to the number of server processes on all hosts; or give these rules another on_store_failure."
        yield Warning(message, hint=hint, id="django_throttle.W081")


IDENTITY_CHECKS: Final = (_proxies, _tenant, _user, _tenants)
