"""Prepaid budgets beside a round trip each: decisions a second on one core, the time of a local one, commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.player import redis_commands
from tests.lab.benchmarks.table import Row

SECTION = "prepaid budgets"
EXACT, LOCAL, SECONDS = 1_000, 50_000, 3.0


def rows(url: str, rounds: int) -> Iterator[Row]:
    store = RedisStore(url, deadline=5)
    exact, prepaid = (
        Limiter([Rule(f"hot {ahead}", "1000000000/min", algorithm="gcra", prepaid=ahead)], store)
        for ahead in (False, True)
    )
    for name, play in (("synchronous", _play), ("asynchronous", _play_on_loop)):
        found = [(play(exact, EXACT), play(prepaid, LOCAL)) for _ in range(rounds)]
        ratio = median(asked / local for asked, local in found)
        local = 1 / median(local for _, local in found)
        yield Row(SECTION, name, local, "/s", ratio, "a round trip each", 20, "≥")
    slow = min(sorted(_play(prepaid, 1) for _ in range(LOCAL))[LOCAL * 99 // 100] for _ in range(rounds))
    yield Row(SECTION, "a local decision, 99 of 100, in the quietest round", slow * 1e6, "µs", asked=10)
    with Redis.from_url(url) as server:
        before, began = redis_commands(server)[1], time.monotonic()
        while time.monotonic() - began < SECONDS:
            _play(prepaid, 100)
        yield Row(SECTION, "commands a second", (redis_commands(server)[1] - before) / SECONDS, "/s", asked=10)


def _play(limiter: Limiter, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        limiter.acquire("everyone")
    return (time.perf_counter() - began) / calls


def _play_on_loop(limiter: Limiter, calls: int) -> float:
    async def play() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await limiter.aacquire("everyone")
        return (time.perf_counter() - began) / calls

    return asyncio.run(play())
