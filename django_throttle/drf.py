"""The REST framework door: one decision for every rule that matches, and drop-ins for DRF's own throttles.

``RuleThrottle`` obeys the rulebook. ``AnonRateThrottle``, ``UserRateThrottle`` and ``ScopedRateThrottle``
obey DRF's settings, as the classes they replace do: each is a limit of its own, decided by itself, and an
allowed one stays charged when another refuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rest_framework import throttling
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from django_throttle import agent, limiter
from django_throttle.conf import conf
from django_throttle.core import Decision, Rate, Rule
from django_throttle.core.checks import MAX_LOG, MAX_RESOLUTION
from django_throttle.core.headers import delay_seconds
from django_throttle.facts import Facts
from django_throttle.identity import HttpWho, network
from django_throttle.limiter import Limiter
from django_throttle.requests import charged, keep
from django_throttle.stores import get_store

__all__ = ["AnonRateThrottle", "LimiterUnavailable", "RuleThrottle", "ScopedRateThrottle", "UserRateThrottle"]


class LimiterUnavailable(APIException):
    """The store failed under a rule that then refuses: 503, as it is not the client's fault."""

    status_code = 503
    default_detail = "The limiter is unavailable. Try again later."
    default_code = "limiter_unavailable"

    def __init__(self, retry_after: float | None) -> None:
        super().__init__()
        self.wait = delay_seconds(retry_after)  # DRF makes Retry-After of it


class DecidedThrottle(throttling.BaseThrottle):
    """Translates a decision into what DRF asks of a throttle."""

    retry_after: float | None = None

    def answer(self, request: Request, decision: Decision) -> bool:
        """Keep the decision on Django's request, for headers and logs; raises LimiterUnavailable."""
        keep(request._request, decision)
        self.retry_after = decision.retry_after
        if decision.unavailable:
            raise LimiterUnavailable(decision.retry_after)
        return decision.allowed

    def wait(self) -> float | None:
        """Seconds until the request could pass; None when it never will."""
        return self.retry_after


class RuleThrottle(DecidedThrottle):
    """All rules that match the view's scope, decided as one: refused by one, charged by none.

    The scope is the view's ``throttle_scope``, else its route's name, else its route. ``throttle_cost``
    on the view is a number, or a callable of the request.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        done = charged(request._request)
        facts = Facts(_scope(request, view), ("request",), HttpWho(request), _cost(request, view), done)
        return self.answer(request, limiter.decide(facts))


class StoreRateThrottle(DecidedThrottle, throttling.SimpleRateThrottle):
    """DRF's SimpleRateThrottle, counted in our store: atomic, by the store's clock, refused calls free.

    A subclass sets ``rate``, or ``scope`` for DEFAULT_THROTTLE_RATES, and may override ``get_cache_key``
    (here: the ident), ``get_rate`` and ``parse_rate``. Rates are those of ``Rate.parse``, which reads DRF's.
    """

    num_requests: int
    duration: float

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
        if self.rate is None:
            return True
        ident = self.get_cache_key(request, view)
        if ident is None:
            return True
        rule = _rule(self.scope or type(self).__name__, self.num_requests, self.duration)
        store = get_store()
        agent.ensure(store, rules=True)
        return self.answer(request, Limiter((rule,), store).acquire(ident))

    def get_ident(self, request: Request) -> str | None:  # type: ignore[override]
        """The client's address: DRF's reading where NUM_PROXIES is set, else one that no header can forge."""
        if api_settings.NUM_PROXIES is None:
            return HttpWho(request).ident("ip")
        # What the header says is taken only when it is an address, in one notation.
        address = network(super().get_ident(request), conf().IPV6_PREFIX)
        return f"ip:{address}" if address else HttpWho(request).ident("ip")


class AnonRateThrottle(StoreRateThrottle):
    """Limits each address that is not logged in."""

    scope = "anon"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        return None if HttpWho(request).ident("user") else self.get_ident(request)


class UserRateThrottle(StoreRateThrottle):
    """Limits each user, and each address that is not logged in."""

    scope = "user"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        return HttpWho(request).ident("user") or self.get_ident(request)


class ScopedRateThrottle(throttling.ScopedRateThrottle, UserRateThrottle):
    """Limits each user, or address, in the view's ``throttle_scope``; views without one are free."""

    get_cache_key = UserRateThrottle.get_cache_key


@lru_cache(maxsize=512)
def _rule(scope: str, limit: int, window: float) -> Rule:
    """DRF's promise, never more than the limit in any window: by a log, or by counters where a log would be long."""
    if limit <= MAX_LOG:
        return Rule(f"drf-{scope}", Rate(limit, window), algorithm="sliding_log")
    return Rule(f"drf-{scope}", Rate(limit, window), resolution=MAX_RESOLUTION, strict=True)


def _scope(request: Request, view: APIView) -> str:
    if scope := getattr(view, "throttle_scope", None):
        return str(scope)
    match = request.resolver_match
    if match is None:  # called directly, without a URL
        return type(view).__name__
    return match.view_name if match.url_name else match.route


def _cost(request: Request, view: APIView) -> int:
    cost = getattr(view, "throttle_cost", 1)
    return cost(request) if callable(cost) else cost
