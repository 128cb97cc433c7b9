"""What a decision costs beside a PING through the same client: ``make bench``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()

from django_throttle.core import Rule  # noqa: E402 (needs Django set up)
from django_throttle.limiter import Limiter  # noqa: E402
from django_throttle.stores import MemoryStore, RedisStore  # noqa: E402
from tests.servers import RedisServer  # noqa: E402

ROUNDS = 15
CALLS = 400
IN_FLIGHT = 50
MIXED = (
    Rule("per second", "1000000/s"),
    Rule("per minute", "9000000/min", algorithm="fixed_window"),
    Rule("per hour", "9000000/h", algorithm="gcra", burst=100_000),
    Rule("per day", "9000000/day", resolution=4),
    Rule("per week", "9000000/week", algorithm="fixed_window"),
)


class Figure(NamedTuple):
    """A row of the table; ``bound`` is the ratio to a PING that the design asks for."""

    what: str
    seconds: float
    bound: float | None = None


def timed(subjects: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds a call, the median of rounds that take turns, so that a slow moment hits all alike."""
    rounds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(ROUNDS):
        for name, subject in subjects.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                subject()
            rounds[name].append((time.perf_counter() - start) / CALLS)
    return {name: median(found) for name, found in rounds.items()}


async def in_flight(limiter: Limiter) -> float:
    """Seconds a decision with 50 of them under way at any time."""

    async def caller(number: int) -> None:
        for _ in range(CALLS // 10):
            await limiter.aacquire(f"user:{number}")

    await caller(0)
    start = time.perf_counter()
    await asyncio.gather(*map(caller, range(IN_FLIGHT)))
    return (time.perf_counter() - start) / (IN_FLIGHT * (CALLS // 10))


def measure(server: RedisServer) -> list[Figure]:
    store = RedisStore(server.url, deadline=5, max_connections=IN_FLIGHT)
    one, five, memory = Limiter(MIXED[:1], store), Limiter(MIXED, store), Limiter(MIXED[:1], MemoryStore())
    took = timed(
        {
            "ping": store.link.client.ping,
            "one": lambda: one.acquire("user:1"),
            "five": lambda: five.acquire("user:2"),
            "memory": lambda: memory.acquire("user:1"),
        }
    )
    return [
        Figure("PING through the same client", took["ping"]),
        Figure("1 rule", took["one"], 1.15),
        Figure("5 mixed rules", took["five"], 1.40),
        Figure("1 rule in memory", took["memory"]),
        Figure(f"1 rule, {IN_FLIGHT} in flight on one loop", asyncio.run(in_flight(one))),
    ]


def main() -> None:
    with RedisServer() as server:
        figures = measure(server)
    ping = figures[0].seconds
    print(f"{'one decision':<40} {'µs':>8} {'× PING':>8} {'asked':>8}")
    for what, seconds, bound in figures:
        asked = "" if bound is None else f"≤ {bound:.2f}"
        print(f"{what:<40} {seconds * 1e6:>8.1f} {seconds / ping:>8.2f} {asked:>8}")


main()
