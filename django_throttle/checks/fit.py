"""What must fit together, and what must exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.cache.backends.redis import RedisCache as DjangoRedisCache
from django.core.checks import CheckMessage, Info, Warning
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache  # type: ignore[import-untyped]

from django_throttle.checks.given import Given, is_number, value_of, wrong
from django_throttle.exceptions import InvalidSetting
from django_throttle.stores.addresses import Address, find_address, parse_address
from django_throttle.stores.deadline import EVENTLET, is_patched_by_eventlet
from django_throttle.stores.options import REPLACED

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
