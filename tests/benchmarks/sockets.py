"""What the mixin costs beside the same consumer without it: handshake, message, memory, and sockets that are silent.

The sockets are held through the ASGI interface, without a server, whose share would hide ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from redis import Redis

from tests.benchmarks.latency import PING
from tests.benchmarks.player import SPAWN, Play, Subject, compare, redis_commands
from tests.benchmarks.table import Row
from tests.benchmarks.visitors import Visitor, consumer, resident_bytes, under

FEW, MANY = 100, 10_000
AT_ONCE = 200  # handshakes under way while many are opened
PATIENCE = 120
SECTION = "sockets"
HANDSHAKES = {"cap": "a cap", "door": "a cap and a rate"}
MESSAGES = {"own": "a rule of the socket's own", "shared": "a rule shared in Redis", "both": "both, each way"}


def handshakes(url: str, kind: str) -> Play:
    """Sockets one after another, each accepted and closed at once."""
    under(kind)
    app, loop = consumer(kind), asyncio.new_event_loop()

    async def come_and_go(calls: int) -> None:
        for _ in range(calls):
            visitor = Visitor(app, 1)
            await visitor.open()
            await visitor.close()

    return lambda calls: loop.run_until_complete(come_and_go(calls))


def messages(url: str, kind: str) -> Play:
    """Messages through one socket, each answered before the next."""
    under(kind)
    loop = asyncio.new_event_loop()
    visitor = Visitor(consumer(kind), 1)
    loop.run_until_complete(visitor.open())

    async def talk(calls: int) -> None:
        for _ in range(calls):
            await visitor.say("hello")

    return lambda calls: loop.run_until_complete(talk(calls))


def hold(end: Connection, kind: str, count: int) -> None:
    """In a process of its own: open so many, say how many bytes each takes here, and hold them until told to end."""
    import django

    django.setup()
    under(kind)
    app = consumer(kind)

    async def together() -> None:
        await Visitor(app, 0).open()  # what the first one makes, all others share
        before = resident_bytes()
        visitors = [Visitor(app, number) for number in range(1, count + 1)]
        for at in range(0, count, AT_ONCE):
            await asyncio.gather(*(visitor.open() for visitor in visitors[at : at + AT_ONCE]))
        end.send((resident_bytes() - before) / count)
        await asyncio.to_thread(end.recv)

    asyncio.run(together())


class Held(NamedTuple):
    """Bytes a socket, here and in Redis; commands a second with those that scripts give, and scripts a second."""

    here: float
    redis: float
    commands: float
    scripts: float


def rows(url: str, rounds: int, seconds: int) -> Iterator[Row]:
    yield from _handshakes(url, rounds)
    yield from _messages(url, rounds)
    yield from _silent(url, seconds)


def _handshakes(url: str, rounds: int) -> Iterator[Row]:
    kinds = ("plain", "none", *HANDSHAKES)
    results = compare(
        [Subject(PING, "ours", "ping"), *[Subject(kind, "sockets", "handshakes", (kind,)) for kind in kinds]],
        url,
        rounds,
    )
    plain, ping = results["plain"], results[PING]
    yield Row(SECTION, "connect and disconnect, without the mixin", plain.took, "µs", plain.ratio(ping), "PING")
    for kind, what in {"none": "no rule", **HANDSHAKES}.items():
        added = results[kind].beyond(plain)
        yield Row(SECTION, f"the mixin adds, {what}", added.took, "µs", added.ratio(ping), "PING")


def _messages(url: str, rounds: int) -> Iterator[Row]:
    kinds = ("plain", "none", *MESSAGES)
    results = compare(
        [Subject(kind, "sockets", "messages", (kind,), calls=5000) for kind in kinds],
        url,
        rounds,
    )
    plain = results["plain"]
    yield Row(SECTION, "a message and its answer, without the mixin", plain.took, "µs")
    for kind, what in {"none": "no rule", **MESSAGES}.items():
        result = results[kind]
        note = f"adds {result.beyond(plain).took:.1f} µs; Redis {result.redis:.2f} µs"
        whole = f"a message and its answer, {what}"
        yield Row(SECTION, whole, result.took, "µs", result.ratio(plain), "without", note=note)


def _silent(url: str, seconds: int) -> Iterator[Row]:
    plain, few, many = (held(url, *which, seconds) for which in (("plain", MANY), ("cap", FEW), ("cap", MANY)))
    yield Row(SECTION, f"{MANY:,} silent sockets: Python, without the mixin", plain.here / 1000, "kB")
    yield Row(SECTION, f"{MANY:,} silent sockets: Python, the mixin adds", (many.here - plain.here) / 1000, "kB")
    yield Row(SECTION, f"{MANY:,} silent sockets: Redis, for each", many.redis, "B")
    yield Row(SECTION, f"{FEW:,} silent sockets: Redis commands", few.commands, "/s")
    ratio = many.commands / few.commands
    yield Row(SECTION, f"{MANY:,} silent sockets: Redis commands", many.commands, "/s", ratio, f"{FEW:,}", 1.1)
    ratio = many.scripts / few.scripts
    yield Row(SECTION, f"{MANY:,} silent sockets: scripts sent", many.scripts, "/s", ratio, f"{FEW:,}", 1.1)


def held(url: str, kind: str, count: int, seconds: int) -> Held:
    """What so many silent sockets take; commands are counted for so many seconds."""
    with Redis.from_url(url) as server:
        server.flushdb()
        before = server.info("memory")["used_memory"]
        with _holding(kind, count) as here:
            taken = (server.info("memory")["used_memory"] - before) / count
            first, start = redis_commands(server), time.monotonic()
            time.sleep(seconds)
            last, took = redis_commands(server), time.monotonic() - start
        commands, scripts = ((new - old) / took for new, old in zip(last, first, strict=True))
        server.flushdb()
    return Held(here, taken, commands, scripts)


@contextmanager
def _holding(kind: str, count: int) -> Iterator[float]:
    near, far = SPAWN.Pipe()
    process = SPAWN.Process(target=hold, args=(far, kind, count), daemon=True)
    process.start()
    try:
        assert near.poll(PATIENCE), f"{count} sockets were not opened"
        yield near.recv()
    finally:
        process.kill()
        process.join()
