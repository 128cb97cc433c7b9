"""A plugin of pytest: the strategies of limits decide by our engine.

Theirs are mapped on our algorithms: the fixed window, the sliding window (two windows, weighted) and the sliding log.
Our windows are aligned to the epoch, theirs begin with the first hit: so a store's clock begins a day with its first
call. The reset time of their moving window is when its oldest hit leaves.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

import limits.aio.strategies
import limits.storage
import limits.strategies
import limits_plain  # noqa: F401  # what is in force of it is replaced here
import presence
from limits.util import WindowStats

from django_throttle.core import Decision, Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore

REDIS = os.environ["FOREIGN_REDIS"]
MIDNIGHT = 20_000 * 86_400


class Clock:
    began: float | None = None

    def __call__(self) -> float:
        now = time.time()
        if self.began is None:
            self.began = now
        return now - self.began + MIDNIGHT


def store_from_string(uri: str, **_: Any) -> MemoryStore | RedisStore:
    if "redis" in uri:
        return RedisStore(REDIS, prefix=secrets.token_hex(4), clock=Clock(), deadline=5)
    return MemoryStore(clock=Clock())


class Strategy:
    algorithm = ""

    def __init__(self, storage: MemoryStore | RedisStore) -> None:
        self.storage = storage

    def limiter(self, item: Any) -> Limiter:
        return Limiter([Rule("it", f"{item.amount}/{item.get_expiry()}s", algorithm=self.algorithm)], self.storage)

    @staticmethod
    def ident(names: tuple[str, ...]) -> str:
        return ":".join(("limits", *names))

    def stats(self, decision: Decision) -> WindowStats:
        presence.note(decision)
        after = decision.reset_after if decision.allowed else decision.retry_after
        return WindowStats(time.time() + (after or 0), decision.remaining)


def told(decision: Decision) -> bool:
    presence.note(decision)
    return decision.allowed


class Sync(Strategy):
    def hit(self, item: Any, *names: str, cost: int = 1) -> bool:
        return told(self.limiter(item).acquire(self.ident(names), cost))

    def test(self, item: Any, *names: str, cost: int = 1) -> bool:
        return told(self.limiter(item).peek(self.ident(names), cost))

    def get_window_stats(self, item: Any, *names: str) -> WindowStats:
        return self.stats(self.limiter(item).peek(self.ident(names)))

    def clear(self, item: Any, *names: str) -> None:
        self.limiter(item).reset(self.ident(names))


class Async(Strategy):
    async def hit(self, item: Any, *names: str, cost: int = 1) -> bool:
        return told(await self.limiter(item).aacquire(self.ident(names), cost))

    async def test(self, item: Any, *names: str, cost: int = 1) -> bool:
        return told(await self.limiter(item).apeek(self.ident(names), cost))

    async def get_window_stats(self, item: Any, *names: str) -> WindowStats:
        return self.stats(await self.limiter(item).apeek(self.ident(names)))

    async def clear(self, item: Any, *names: str) -> None:
        await self.limiter(item).areset(self.ident(names))


ALGORITHMS = {
    "FixedWindowRateLimiter": "fixed_window",
    "SlidingWindowCounterRateLimiter": "sliding_window",
    "MovingWindowRateLimiter": "sliding_log",
}
for name, algorithm in ALGORITHMS.items():
    setattr(limits.strategies, name, type(name, (Sync,), {"algorithm": algorithm}))
    setattr(limits.aio.strategies, name, type(name, (Async,), {"algorithm": algorithm}))
limits.storage.storage_from_string = store_from_string
