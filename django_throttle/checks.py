"""System checks: one number for each way in which the settings or the rules can be wrong.

E001–E006 are about the dictionary and its rules, E01x about texts and choices, E02x about numbers, E03x about
what must fit together; W00x are things that work but should be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import Error as DatabaseFailure
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache  # type: ignore[import-untyped]

from django_throttle.conf import NAMES, Conf, unknown
from django_throttle.core import Rule
from django_throttle.exceptions import InvalidRate, InvalidRule, InvalidSetting
from django_throttle.identity import is_async
from django_throttle.rulebook import sources
from django_throttle.stores.addresses import parse_address

DEFAULTS: Final = Conf()
# Setting: number of its check, least, most, and whether it counts something.
NUMBERS: Final[dict[str, tuple[str, float, float, bool]]] = {
    "RULES_POLL": ("E020", 0.05, 60, False),
    "RULES_REREAD": ("E021", 1, 3600, False),
    "DEADLINE": ("E022", 0.005, 10, False),
    "MAX_CONNECTIONS": ("E023", 1, 10_000, True),
    "BEAT_INTERVAL": ("E024", 0.1, 300, False),
    "PROCESS_TTL": ("E025", 0.5, 3600, False),
    "CONNECTION_TTL": ("E026", 1, 86_400, False),
    "EXTEND_INTERVAL": ("E027", 0.5, 43_200, False),
    "IPV6_PREFIX": ("E028", 1, 128, True),
    "MAX_VIOLATIONS": ("E029", 0, 1_000_000, True),
}
TEXTS: Final = {"PREFIX": "E012", "KEY_SECRET": "E013"}
SWITCHES: Final = {"DATABASE_RULES": "E014", "AGENT": "E015"}
CHOICES: Final = {"STORE": ("E010", ("memory", "redis")), "REFUSE_SOCKET": ("E016", ("http", "frame"))}
PAIRS: Final = (("E033", "PROCESS_TTL", "BEAT_INTERVAL"), ("E034", "CONNECTION_TTL", "EXTEND_INTERVAL"))

Given = Mapping[str, Any]


@register("django_throttle")
def check_settings(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Everything in DJANGO_THROTTLE, without a look at the database or at Redis."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if not isinstance(given, Mapping):
        return [_error("E001", f"DJANGO_THROTTLE is a dictionary, not {type(given).__name__}")]
    return [message for check in SETTING_CHECKS for message in check(given)]


@register(Tags.security, deploy=True)
def check_store(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Memory counts in each process for itself."""
    given = getattr(settings, "DJANGO_THROTTLE", {})
    if settings.DEBUG or not isinstance(given, Mapping) or _value(given, "STORE") != "memory":
        return []
    message = "each server process counts for itself, so a limit of 100 becomes 100 in every one of them"
    return [Warning(message, hint='Set DJANGO_THROTTLE["REDIS"].', id="django_throttle.W001")]


@register(Tags.database)
def check_rows(
    app_configs: Sequence[Any] | None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """The rules in the database, only where the database may be asked."""
    if sources.alias() not in (databases or ()) or check_settings(None):
        return []
    try:
        faults = sources.from_database().faults
    except DatabaseFailure:
        return []  # not migrated yet
    hint = "Correct it in the admin; until then it is not in force."
    return [
        Warning(f"rule {name!r} in the database: {what}", hint=hint, id="django_throttle.W002")
        for name, what in faults.items()
    ]


def _names(given: Given) -> Iterator[CheckMessage]:
    for name in given:
        if name not in NAMES:
            yield _error("E002", unknown(name))


def _rules(given: Given) -> Iterator[CheckMessage]:
    rules = _value(given, "RULES")
    if not isinstance(rules, Mapping):
        yield _error("E003", f"RULES is a dictionary of rules, not {type(rules).__name__}")
        return
    for name, options in rules.items():
        try:
            yield from _callable(Rule.from_options(name, options))
        except (InvalidRule, InvalidRate) as error:
            yield _error("E004", f"rule {name!r}: {sources.sentence(str(name), error)}")


def _callable(rule: Rule) -> Iterator[CheckMessage]:
    if "." not in rule.key:
        return
    named = f"rule {rule.name!r}: the key {rule.key!r}"
    try:
        found = import_string(rule.key)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield _error("E005", f"{named} cannot be imported ({error})")
        return
    if not callable(found):
        yield _error("E005", f"{named} cannot be called")
    elif is_async(found):
        yield _error("E006", f"{named} is async; what names the caller must be a plain function")


def _choices(given: Given) -> Iterator[CheckMessage]:
    for name, (number, allowed) in CHOICES.items():
        if _value(given, name) not in allowed:
            yield _error(number, f"{name} is one of {', '.join(allowed)}, not {_value(given, name)!r}")


def _texts(given: Given) -> Iterator[CheckMessage]:
    for name, number in TEXTS.items():
        if not isinstance(_value(given, name), str):
            yield _error(number, f"{name} is text, not {type(_value(given, name)).__name__}")
    prefix = _value(given, "PREFIX")
    if isinstance(prefix, str) and (not prefix or set(prefix) & set("{} \t\n")):
        yield _error(TEXTS["PREFIX"], f"PREFIX is text without spaces and braces, not {prefix!r}")


def _switches(given: Given) -> Iterator[CheckMessage]:
    for name, number in SWITCHES.items():
        if not isinstance(_value(given, name), bool):
            yield _error(number, f"{name} is True or False, not {_value(given, name)!r}")


def _numbers(given: Given) -> Iterator[CheckMessage]:
    for name, (number, least, most, counts) in NUMBERS.items():
        value = _value(given, name)
        if not _is_number(value, counts) or not least <= value <= most:
            kind = "whole number" if counts else "number of seconds"
            yield _error(number, f"{name} is a {kind} from {least} to {most}, not {value!r}")


def _redis(given: Given) -> Iterator[CheckMessage]:
    address = _value(given, "REDIS")
    if not isinstance(address, str) or not address:
        yield _error("E011", f"REDIS is a CACHES alias or a redis:// URL, not {address!r}")
    elif "://" in address:
        try:
            parse_address(address)
        except InvalidSetting as error:
            yield _error("E030", f"REDIS: {error}")
    elif _value(given, "STORE") == "redis":
        yield from _alias(address)


def _alias(alias: str) -> Iterator[CheckMessage]:
    if alias not in settings.CACHES:
        yield _error("E031", f"REDIS names {alias!r}, which CACHES does not have; it has {', '.join(settings.CACHES)}")
    elif not _is_django_redis(settings.CACHES[alias].get("BACKEND")):
        yield _error("E032", f"the cache {alias!r} is served by another backend than django-redis")


def _is_django_redis(backend: object) -> bool:
    try:
        found = import_string(str(backend))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, RedisCache)


def _pairs(given: Given) -> Iterator[CheckMessage]:
    """What lives must have two chances to say so before it is taken for dead."""
    for number, lives, beats in PAIRS:
        ttl, interval = _value(given, lives), _value(given, beats)
        if _is_number(ttl, False) and _is_number(interval, False) and ttl < 2 * interval:
            yield _error(number, f"{lives} is at least twice {beats}, not {ttl!r} against {interval!r}")


def _value(given: Given, name: str) -> Any:
    if name == "STORE" and "REDIS" in given:
        return given.get("STORE", "redis")
    return given.get(name, getattr(DEFAULTS, name))


def _is_number(value: object, counts: bool) -> bool:
    return isinstance(value, int if counts else (int, float)) and not isinstance(value, bool)


def _error(number: str, message: str) -> CheckMessage:
    return Error(message, id=f"django_throttle.{number}")


SETTING_CHECKS: Final = (_names, _rules, _choices, _texts, _switches, _numbers, _redis, _pairs)
