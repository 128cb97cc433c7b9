"""Other limiters under the same idents, with rules as near to ours as they have them."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import limits
from django_ratelimit.core import is_ratelimited
from limits import aio, storage, strategies
from rest_framework.throttling import UserRateThrottle
from throttled import RedisStore, Throttled, rate_limiter
from throttled import asyncio as async_throttled

from tests.lab.benchmarks.player import Play, in_flight, one_by_one
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
    asked = _strategies(strategies, storage.storage_from_string(url), _rules(rules, fresh))
    return one_by_one(lambda ident: [limiter.hit(limit, ident) for limiter, limit in asked], fresh=fresh)


def of_limits_async(url: str, rules: int) -> Play:
    store = storage.storage_from_string(f"async+{url}", implementation="redispy")
    asked = _strategies(aio.strategies, store, RULES[:rules])

    async def call(ident: str) -> None:
        for limiter, limit in asked:
            await limiter.hit(limit, ident)

    return in_flight(call)


def _strategies(kinds: Any, store: Any, rules: tuple[Any, ...]) -> list[tuple[Any, limits.RateLimitItem]]:
    return [
        (getattr(kinds, f"{name}RateLimiter")(store), limits.RateLimitItemPerSecond(*rate, namespace=f"bench{at}"))
        for at, (*rate, name, _) in enumerate(rules)
    ]


def of_throttled(url: str, rules: int, *, fresh: bool = False) -> Play:
    asked = _throttles(Throttled, RedisStore(server=url), _rules(rules, fresh))
    return one_by_one(lambda ident: [throttle.limit(ident) for throttle in asked], fresh=fresh)


def of_throttled_async(url: str, rules: int) -> Play:
    asked = _throttles(async_throttled.Throttled, async_throttled.RedisStore(server=url), RULES[:rules])

    async def call(ident: str) -> None:
        for throttle in asked:
            await throttle.limit(ident)

    return in_flight(call)


def _throttles(kind: Any, store: Any, rules: tuple[Any, ...]) -> list[Any]:
    quotas = [rate_limiter.per_duration(timedelta(seconds=window), limit) for limit, window, *_ in rules]
    return [
        kind(using=name, quota=quota, store=store, key_prefix=f"bench{at}")
        for at, (quota, (*_, name)) in enumerate(zip(quotas, rules, strict=True))
    ]


def of_django_ratelimit(url: str, rules: int, *, fresh: bool = False) -> Play:
    def call(ident: str) -> None:
        request = SimpleNamespace(ident=ident)
        for at, (limit, window, *_) in enumerate(_rules(rules, fresh)):
            options = {"rate": f"{limit}/{window}s", "increment": True}
            is_ratelimited(request, f"bench{at}", key=lambda _, asked: asked.ident, **options)

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
    play: Play = globals()[peer](url, rules, fresh=True)
    return play


def _rules(number: int, fresh: bool) -> tuple[Any, ...]:
    return (KEPT if fresh else RULES)[:number]
