"""How a subject is played: one call after another, many in flight, or piped to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from redis import Redis

from django_throttle.stores.sync_pool import pack
from tests.benchmarks.player import Play

IN_FLIGHT = 50
PIPED = 100
# Enough that no ident's history is long, few enough that all of it stays in the processor's cache.
IDENTS = [f"user:{number}" for number in range(100)]


def one_by_one(call: Callable[[str], object], *, fresh: bool = False) -> Play:
    """Synchronous calls; under idents never seen before where ``fresh``."""
    numbers = count()

    def play(calls: int) -> None:
        if fresh:
            for _ in range(calls):
                call(f"fresh:{next(numbers)}")
            return
        for at in range(calls):
            call(IDENTS[at % len(IDENTS)])

    return play


def in_flight(call: Callable[[str], Awaitable[Any]]) -> Play:
    """Fifty coroutines on one loop, each with one call under way at any time."""
    loop = asyncio.new_event_loop()

    async def caller(number: int, calls: int) -> None:
        for _ in range(calls):
            await call(IDENTS[number])

    async def together(calls: int) -> None:
        await asyncio.gather(*(caller(number, -(-calls // IN_FLIGHT)) for number in range(IN_FLIGHT)))

    return lambda calls: loop.run_until_complete(together(calls))


def piped(url: str, commands: Sequence[Sequence[Any]]) -> Play:
    """The commands in turn, a hundred in one go, so that Redis does little but carry them out."""
    connection = Redis.from_url(url).connection_pool.get_connection()
    packed = b"".join(pack(commands[at % len(commands)]) for at in range(PIPED))

    def play(calls: int) -> None:
        for _ in range(-(-calls // PIPED)):
            connection.send_packed_command([packed], check_health=False)
            for _ in range(PIPED):
                connection.read_response(disable_decoding=True)

    return play
