"""Drop-ins for DRF's own throttles: they obey its settings and methods, and count in our store."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.settings import api_settings

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.conf import conf
from django_throttle.core import Rate, Rule
from django_throttle.core.algorithms.sliding_log import MAX_LOG
from django_throttle.core.key import EVERYONE
from django_throttle.core.options import MAX_RESOLUTION
from django_throttle.core.overrides import UNLISTED
from django_throttle.drf.rule_throttle import DecidedThrottle, LimiterUnavailable, finish_in_view, scope_of_view
from django_throttle.http.request_state import django_request, method_of, state_of
from django_throttle.identity import HttpWho, network
from django_throttle.identity.caller import refuses_without_address
from django_throttle.identity.keys import shortened
from django_throttle.rulebook.snapshot import NO_ADDRESS_WAIT

if TYPE_CHECKING:
    # REST framework imports the default throttle classes while it imports its views.
    from rest_framework.views import APIView


class Unsupported:
    """What DRF's throttles have and these have not: whoever reads it, or puts something there, is told so."""

    def __init__(self, instead: str) -> None:
        self.instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, throttle: object | None, owner: type) -> Unsupported:
        if throttle is None:
            return self
        raise AttributeError(self.message(owner))

    def message(self, owner: type) -> str:
        return f"{owner.__name__}.{self.name}: {self.instead}"


class StoreRateThrottle(DecidedThrottle, throttling.SimpleRateThrottle):
    """DRF's SimpleRateThrottle, counted in our store: atomic, by the store's clock, refused calls free.

    A subclass sets ``rate``, or ``scope`` for DEFAULT_THROTTLE_RATES, and may override ``get_cache_key`` (whose
    text is what the call counts under), ``get_rate``, ``parse_rate``, ``get_ident``, ``throttle_success``,
    ``throttle_failure`` and ``wait``. ``key`` and ``decision`` are those of the last request. Rates are those of
    ``Rate.parse``, which reads DRF's. Raises ImproperlyConfigured for a ``timer``, a ``cache`` or a ``cache_format``
    of one's own, by which nothing would be counted.
    """

    num_requests: int
    duration: float
    key: str

    timer: Any = Unsupported("calls are counted by the clock of the store, which a test moves by override_rules({})")
    cache: Any = Unsupported("calls are counted in the store that DJANGO_THROTTLE names, in no cache")
    history: Any = Unsupported("the store keeps none; self.decision has limit, remaining and retry_after")
    now: Any = Unsupported("calls are counted by the clock of the store")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._check()
        is_formatted = cls.cache_format != throttling.SimpleRateThrottle.cache_format
        if is_formatted and cls.get_cache_key.__module__ == __name__:
            raise ImproperlyConfigured(
                f"{cls.__name__}.cache_format is only for a get_cache_key of its own; "
                "what is to count apart has another scope"
            )

    @property
    def THROTTLE_RATES(self) -> Any:  # type: ignore[override]  # noqa: N802 (DRF's name)
        """DRF's setting as it is now; DRF itself reads it once, at import."""
        return api_settings.DEFAULT_THROTTLE_RATES

    def parse_rate(self, rate: str | None) -> Any:
        """(limit, window in seconds), or a pair of None for no limit; raises InvalidRate."""
        if rate is None:
            return None, None
        parsed = Rate.parse(rate)
        return parsed.limit, parsed.window

    def allow_request(self, request: Request, view: APIView) -> bool:
        self._check()
        key = None if self.rate is None else self.get_cache_key(request, view)
        if key is None:
            return True
        self.key = key
        who = HttpWho(request)
        rule = _rule_of_rate(self.scope or type(self).__name__, self.num_requests, self.duration, conf().SHADOW)
        inner = django_request(request)
        scope, method = scope_of_view(inner, view), method_of(inner)
        ident = key if isinstance(key, _TaggedIdent) else f"key:{shortened(str(key))}"
        facts = Facts(scope, ("request",), who, rule=rule, method=method, early=True, ident=ident)
        state, decision = state_of(inner), limiter.decide(facts)
        state.note_apart(decision, who)
        finish_in_view(view, inner, who, state)
        return self.throttle_success() if self.answer(decision, view) else self.throttle_failure()

    def throttle_success(self) -> bool:
        """True; called for each request that passes, which has been counted by then."""
        return True

    def get_ident(self, request: Request) -> str | None:  # type: ignore[override]
        """The client's address: DRF's reading where NUM_PROXIES is set, else one that no header can forge.

        Raises LimiterUnavailable where nobody knows it and the site refuses that (NO_ADDRESS).
        """
        # What the header says is taken only when it is an address, in one notation.
        said = None if api_settings.NUM_PROXIES is None else super().get_ident(request)
        address = network(said, conf().IPV6_PREFIX)
        ident = f"ip:{address}" if address else HttpWho(request).ident("ip")
        if ident is None and refuses_without_address():
            raise LimiterUnavailable(NO_ADDRESS_WAIT)
        return None if ident is None else _TaggedIdent(ident)

    @classmethod
    def _check(cls) -> None:
        """At each request too, because DRF's way to test a throttle is to set a timer on its class."""
        for unsupported in _NEVER_OVERRIDDEN:
            if getattr(cls, unsupported.name) is not unsupported:
                raise ImproperlyConfigured(unsupported.message(cls))


_NEVER_OVERRIDDEN: Final = (StoreRateThrottle.timer, StoreRateThrottle.cache)


class AnonRateThrottle(StoreRateThrottle):
    """Limits each address that is not logged in."""

    scope = "anon"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        return None if HttpWho(request).ident("user") else self.get_ident(request)


class UserRateThrottle(StoreRateThrottle):
    """Limits each user, and each address that is not logged in."""

    scope = "user"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        user = HttpWho(request).ident("user")
        return _TaggedIdent(user) if user else self.get_ident(request)


class ScopedRateThrottle(throttling.ScopedRateThrottle, UserRateThrottle):
    """Limits each user, or address, in the view's ``throttle_scope``; views without one are free."""

    get_cache_key = UserRateThrottle.get_cache_key


class _TaggedIdent(str):
    """What we have found ourselves, and tagged by its kind; any other key is a text of the site's own making."""

    __slots__ = ()


@lru_cache(maxsize=512)
def _rule_of_rate(scope: str, limit: int, window: float, shadow: bool) -> Rule:
    """DRF's promise, never more than the limit in any window: by a log, or by counters where a log would be long."""
    name, rate = f"{UNLISTED}{scope}", Rate(limit, window)
    if limit <= MAX_LOG:
        rule = Rule(name, rate, key=EVERYONE, algorithm="sliding_log")
    else:
        rule = Rule(name, rate, key=EVERYONE, resolution=MAX_RESOLUTION, strict=True)
    return rule.as_shadow() if shadow else rule


def drop_in_names() -> set[str]:
    """What overrides call the limits of the throttles that are loaded, and of every scope that has a rate."""
    found = set(api_settings.DEFAULT_THROTTLE_RATES)
    classes = StoreRateThrottle.__subclasses__()
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        rates = one.THROTTLE_RATES
        found |= {getattr(one, "scope", None) or one.__name__, *(rates if isinstance(rates, Mapping) else ())}
    return {f"{UNLISTED}{scope}" for scope in found if isinstance(scope, str)}
