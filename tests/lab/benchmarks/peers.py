"""Other limiters under the same idents, with rules as near to ours as they have them."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import limits
from django_ratelimit.core import is_ratelimited
from limits import aio, storage, strategies
from rest_framework.throttling import UserRateThrottle
from throttled import RedisStore, Throttled, rate_limiter
from throttled import asyncio as async_throttled

from tests.lab.benchmarks.play import in_flight, one_by_one
from tests.lab.benchmarks.player import Play
from tests.lab.benchmarks.settings import RATES

# Limit, window in seconds, and the algorithm's name in limits and in throttled-py.
RULES = (
    (1_000_000, 1, "SlidingWindowCounter", "sliding_window"),
    (9_000_000, 60, "FixedWindow", "fixed_window"),
    (9_000_000, 3600, "SlidingWindowCounter", "gcra"),  # limits has no GCRA
    (9_000_000, 86400, "SlidingWindowCounter", "sliding_window"),
    (9_000_000, 604800, "FixedWindow", "fixed_window"),
)
# For what an identity takes in memory: nothing expires during the run.
KEPT = tuple((10, 3600, *kinds) for _, _, *kinds in RULES)


def of_limits(url: str, rules: int, *, fresh: bool = False) -> Play:
    store = storage.storage_from_string(url)
    asked = [
        (getattr(strategies, f"{name}RateLimiter")(store), _limit(*rate, at))
        for at, (*rate, name, _) in enumerate(_rules(rules, fresh))
    ]
    return one_by_one(lambda ident: [limiter.hit(limit, ident) for limiter, limit in asked], fresh=fresh)


def of_limits_async(url: str, rules: int) -> Play:
    store = storage.storage_from_string(f"async+{url}", implementation="redispy")
    asked = [
        (getattr(aio.strategies, f"{name}RateLimiter")(store), _limit(*rate, at))
        for at, (*rate, name, _) in enumerate(RULES[:rules])
    ]

    async def call(ident: str) -> None:
        for limiter, limit in asked:
            await limiter.hit(limit, ident)

    return in_flight(call)


def of_throttled(url: str, rules: int, *, fresh: bool = False) -> Play:
    asked = _throttles(Throttled, RedisStore(server=url), _rules(rules, fresh))
    return one_by_one(lambda ident: [one.limit(ident) for one in asked], fresh=fresh)


def of_throttled_async(url: str, rules: int) -> Play:
    asked = _throttles(async_throttled.Throttled, async_throttled.RedisStore(server=url), RULES[:rules])

    async def call(ident: str) -> None:
        for one in asked:
            await one.limit(ident)

    return in_flight(call)


def of_django_ratelimit(url: str, rules: int, *, fresh: bool = False) -> Play:
    """Fixed windows, its only kind, through Django's cache."""

    def call(ident: str) -> None:
        request = SimpleNamespace(ident=ident)
        for at, (limit, window, *_) in enumerate(_rules(rules, fresh)):
            is_ratelimited(request, f"bench{at}", key=_ident, rate=f"{limit}/{window}s", increment=True)

    return one_by_one(call, fresh=fresh)


def of_drf(url: str, rules: int, *, fresh: bool = False) -> Play:
    """A list of moments for each ident, its only kind, read and written through Django's cache."""
    throttles = [
        type("Throttle", (UserRateThrottle,), {"scope": f"bench{at}", "rate": rate})
        for at, rate in enumerate(["10/h"] * rules if fresh else RATES[:rules])
    ]

    def call(ident: str) -> None:
        request: Any = SimpleNamespace(user=SimpleNamespace(is_authenticated=True, pk=ident))
        for throttle in throttles:
            throttle().allow_request(request, None)

    return one_by_one(call, fresh=fresh)


def kept_by(url: str, peer: str, rules: int) -> Play:
    """Idents never seen before, for what each takes in memory."""
    makers = {one.__name__: one for one in (of_limits, of_throttled, of_django_ratelimit, of_drf)}
    return makers[peer](url, rules, fresh=True)


def _limit(limit: int, window: int, at: int) -> limits.RateLimitItem:
    return limits.RateLimitItemPerSecond(limit, window, namespace=f"bench{at}")


def _rules(number: int, fresh: bool) -> tuple[Any, ...]:
    return (KEPT if fresh else RULES)[:number]


def _throttles(kind: Any, store: Any, rules: tuple[Any, ...]) -> list[Any]:
    return [
        kind(
            using=name,
            quota=rate_limiter.per_duration(timedelta(seconds=window), limit),
            store=store,
            key_prefix=f"bench{at}",
        )
        for at, (limit, window, _, name) in enumerate(rules)
    ]


def _ident(group: str, request: Any) -> str:
    return str(request.ident)
