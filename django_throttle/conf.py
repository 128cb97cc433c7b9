"""Every setting and its default, one line each; read late, so that override_settings just works.

All of them live in one dictionary, ``DJANGO_THROTTLE``; times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle.core.options import did_you_mean
from django_throttle.exceptions import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The settings in force."""

    STORE: str = "memory"  # "memory" or "redis"; "redis" where REDIS is given
    REDIS: str = "default"  # a CACHES alias of a Redis cache, or a URL: redis://, redis+sentinel://, …
    PREFIX: str = "dt"  # first part of every store key
    KEY_SECRET: str = ""  # keys the hash of idents; SECRET_KEY when empty
    RULES: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    DATABASE_RULES: bool = True  # also read the rules and overrides of the admin
    HOOKS: Sequence[str] = ()  # dotted paths of what is called with a report of every decision
    LOG_COST_ABOVE: Mapping[str, float] = field(default_factory=dict)  # log requests above, as {"queries": 50}
    RECORD_IDENTS: bool = False  # keep idents there in clear, instead of their keyed hash
    SHADOW: bool = False  # every rule only records, as if its action were "shadow": nothing is refused
    TESTS: str = "memory"  # in a test run of the site, rules count in "memory" or "redis", or are off: "unlimited"
    DEADLINE: float = 0.1  # longest time for one decision
    PROCESSES: int = 0  # how many share each limit while Redis is away, at least; 0: as many as were seen last
    PROCESS_TTL: float = 20.0  # a process that was silent for this long is dead; it sends four beats in this time
    IPV6_PREFIX: int = 64  # addresses that share this many bits share a budget
    TRUSTED_PROXIES: Sequence[str] | int | None = None  # their networks, or how many in a row; () or 0: none
    PROXY_HEADER: str = "X-Forwarded-For"  # the one header in which they say who the client is
    NO_ADDRESS: str = "skip"  # rules by address, for a client without one: "skip" them, or "refuse" with 503
    USER_IDENT: str = ""  # dotted path of a function of a user: what it counts under instead of its primary key
    TENANT: str = ""  # the key "tenant": user.tenant_id, or the dotted path of a function of the request
    RETRY_JITTER: float = 0.1  # Retry-After is longer by up to this share, a minute at most: a crowd is spread out
    RATELIMIT_HEADERS: str = "draft-11"  # RateLimit and RateLimit-Policy, by this version of the draft; or "off"
    X_RATELIMIT_HEADERS: str = "off"  # X-RateLimit-*, whose Reset is in "seconds" or, as "epoch", since 1970
    TELL_KEYS: Sequence[str] = ()  # dotted keys of rules whose budgets are the client's own, to be told in headers
    SOCKET_IDLE_TIMEOUT: float = 0.0  # a socket from which nothing comes for so long is closed; 0: never


NAMES: Final = tuple(setting.name for setting in fields(Conf))


@lru_cache(maxsize=1)
def conf() -> Conf:
    """The settings in force; raises InvalidSetting for one that does not exist. Without Django's, the defaults."""
    try:
        found = getattr(settings, "DJANGO_THROTTLE", {})
    except ImproperlyConfigured:
        return Conf()
    if not isinstance(found, Mapping):
        raise InvalidSetting(no_dictionary(found))
    given = dict(found)
    for name in given:
        if name not in NAMES:
            raise InvalidSetting(unknown(name))
    if "REDIS" in given:
        given.setdefault("STORE", "redis")
    given["KEY_SECRET"] = given.get("KEY_SECRET") or settings.SECRET_KEY
    return Conf(**given)


def no_dictionary(found: object) -> str:
    """What to say of settings that are something else."""
    return f"DJANGO_THROTTLE must be a dictionary, not {type(found).__name__}"


def unknown(name: object) -> str:
    """What to say of a setting that does not exist."""
    return f"DJANGO_THROTTLE has no setting {name!r}{did_you_mean(str(name).upper(), NAMES)}"


@receiver(setting_changed, dispatch_uid="django_throttle.conf")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        conf.cache_clear()
