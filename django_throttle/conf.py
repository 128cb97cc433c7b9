"""The settings in the dictionary ``DJANGO_THROTTLE``, read late so that override_settings works. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle.core.options import did_you_mean
from django_throttle.exceptions import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The current settings, with their defaults."""

    STORE: str = "memory"  # "memory" or "redis"; "redis" if REDIS is set
    REDIS: str = "default"  # CACHES alias of a Redis cache, or a URL: redis://, redis+sentinel://, …
    PREFIX: str = "dt"  # first part of each store key
    KEY_SECRET: str = ""  # secret of the hashes of idents; SECRET_KEY if empty
    RULES: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    DATABASE_RULES: bool = True  # read the rules and overrides of the admin, too
    HOOKS: Sequence[str] = ()  # dotted paths of functions of a report of each decision
    LOG_COST_ABOVE: Mapping[str, float] = field(default_factory=dict)  # such as {"queries": 50}
    RECORD_IDENTS: bool = False  # record idents in clear, not their keyed hash
    SHADOW: bool = False  # every rule only records, as with the action "shadow"
    TESTS: str = "memory"  # in a test run, count in "memory" or "redis", or limit nothing: "unlimited"
    DEADLINE: float = 0.1  # longest time for a decision
    PROCESSES: int = 0  # minimal number of processes that share each limit during an outage; 0: as many as seen
    PROCESS_TTL: float = 20.0  # silence after which a process is dead
    IPV6_PREFIX: int = 64  # length of the network that shares a budget
    TRUSTED_PROXIES: Sequence[str] | int | None = None  # networks, or the number in a row; () or 0: none
    PROXY_HEADER: str = "X-Forwarded-For"  # the only header in which proxies report the client
    NO_ADDRESS: str = "skip"  # "skip" rules by address for calls without one, or "refuse" with 503
    TENANT: str = ""  # attribute path such as user.tenant_id, or dotted path of a function of the request
    RETRY_JITTER: float = 0.1  # share by which Retry-After is extended at most, up to a minute
    RATELIMIT_HEADERS: str = "draft-11"  # version of RateLimit and RateLimit-Policy, or "off"
    X_RATELIMIT_HEADERS: str = "off"  # X-RateLimit-*, with Reset in "seconds" from now, or as "epoch"
    TELL_KEYS: Sequence[str] = ()  # dotted keys whose budgets are the client's own
    SOCKET_IDLE_TIMEOUT: float = 0.0  # silence after which a socket is closed; 0: never


NAMES: Final = tuple(setting.name for setting in fields(Conf))


@lru_cache(maxsize=1)
def conf() -> Conf:
    """Return the current settings; the defaults if Django has no settings. Raise InvalidSetting for unknown names."""
    try:
        raw = getattr(settings, "DJANGO_THROTTLE", {})
    except ImproperlyConfigured:
        return Conf()
    if not isinstance(raw, Mapping):
        raise InvalidSetting(type_fault(raw))
    values = dict(raw)
    for name in values:
        if name not in NAMES:
            raise InvalidSetting(name_fault(name))
    if "REDIS" in values:
        values.setdefault("STORE", "redis")
    values["KEY_SECRET"] = values.get("KEY_SECRET") or settings.SECRET_KEY
    return Conf(**values)


def type_fault(raw: object) -> str:
    """Return the message for a DJANGO_THROTTLE that is not a dictionary."""
    return f"DJANGO_THROTTLE must be a dictionary, not {type(raw).__name__}"


def name_fault(name: object) -> str:
    """Return the message for a setting that does not exist."""
    return f"DJANGO_THROTTLE has no setting {name!r}{did_you_mean(str(name).upper(), NAMES)}"


@receiver(setting_changed, dispatch_uid="django_throttle.conf")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        conf.cache_clear()
