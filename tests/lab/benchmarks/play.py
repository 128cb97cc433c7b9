"""How a subject is played: one call after another, many in flight, or piped to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from redis import Redis

from tests.lab.benchmarks.player import Play

IN_FLIGHT = 50
PIPED = 100
# Enough that no ident's history is long, few enough that all of it stays in the processor's cache.
IDENTS = [f"user:{number}" for number in range(100)]


def one_by_one(call: Callable[[str], object], *, fresh: bool = False) -> Play:
    numbers = count()

    def play(calls: int) -> None:
        if fresh:
            for _ in range(calls):
                call(f"fresh:{next(numbers)}")
            return
        for at in range(calls):
            call(IDENTS[at % len(IDENTS)])

    return play


def in_flight(call: Callable[[str], Awaitable[Any]], *, fresh: bool = False, width: int = IN_FLIGHT) -> Play:
    """Fifty coroutines on one loop, each with one call under way at any time; under new idents where ``fresh``."""
    loop, numbers = asyncio.new_event_loop(), count()

    async def caller(number: int, calls: int) -> None:
        for _ in range(calls):
            await call(f"fresh:{next(numbers)}" if fresh else IDENTS[number % len(IDENTS)])

    async def together(calls: int) -> None:
        await asyncio.gather(*(caller(number, -(-calls // width)) for number in range(width)))

    return lambda calls: loop.run_until_complete(together(calls))


def in_turn(call: Callable[[str], Awaitable[Any]]) -> Play:
    loop = asyncio.new_event_loop()

    async def play(calls: int) -> None:
        for at in range(calls):
            await call(IDENTS[at % len(IDENTS)])

    return lambda calls: loop.run_until_complete(play(calls))


def another(pristine: Any) -> Any:
    """A request like this one, to which nothing has happened yet."""
    request = object.__new__(type(pristine))
    request.__dict__.update(pristine.__dict__)
    return request


def piped(url: str, commands: Sequence[Sequence[Any]]) -> Play:
    """The commands in turn, a hundred in one go, so that Redis does little but carry them out."""
    connection = Redis.from_url(url).connection_pool.get_connection()
    packed = b"".join(part for at in range(PIPED) for part in connection.pack_command(*commands[at % len(commands)]))

    def play(calls: int) -> None:
        for _ in range(-(-calls // PIPED)):
            connection.send_packed_command([packed], check_health=False)
            for _ in range(PIPED):
                connection.read_response(disable_decoding=True)

    return play
