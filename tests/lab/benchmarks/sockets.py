"""What the mixin costs beside the same consumer without it: handshake, message, memory, and sockets that are silent.

The sockets are held through the ASGI interface, without a server, whose share would hide ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from redis import Redis

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.lab.benchmarks.latency import IN_FLIGHT_CALLS, PING
from tests.lab.benchmarks.play import IN_FLIGHT, in_flight
from tests.lab.benchmarks.player import SPAWN, Play, Subject, compare, redis_commands
from tests.lab.benchmarks.table import Row
from tests.lab.benchmarks.visitors import RULES, Visitor, consumer, resident_bytes, under
from tests.servers import quickest

FEW, MANY = 100, 10_000
AT_ONCE = 200  # handshakes under way while many are opened
PATIENCE = 120
EXTENSIONS = 2  # of all times to live, the quickest of which counts
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


def busy(url: str, kind: str) -> Play:
    """Messages through fifty sockets at once, each answered before the next of its socket."""
    under(kind)
    app, loop = consumer(kind), asyncio.new_event_loop()
    visitors = [Visitor(app, number) for number in range(IN_FLIGHT)]

    async def open_all() -> None:
        for visitor in visitors:
            await visitor.open()

    async def talk(visitor: Visitor, calls: int) -> None:
        for _ in range(calls):
            await visitor.say("hello")

    async def together(calls: int) -> None:
        await asyncio.gather(*(talk(visitor, -(-calls // IN_FLIGHT)) for visitor in visitors))

    loop.run_until_complete(open_all())
    return lambda calls: loop.run_until_complete(together(calls))


def asked(url: str) -> Play:
    """``aacquire`` of the rule that sockets share, fifty at once."""
    rule = Rule.from_options("shared", RULES["shared"]["shared"])
    return in_flight(Limiter([rule], RedisStore(url, deadline=5)).aacquire)


def hold(end: Connection, kind: str, count: int, first: int) -> None:
    """In a process of its own: when told to, open so many, say how many bytes each takes here, and hold them.

    Whatever it is told then has it beat and extend, and say how many seconds each takes.
    """
    import django

    django.setup()
    under(kind)
    app = consumer(kind)

    async def together() -> None:
        await Visitor(app, first).open()  # what the first one makes, all others share
        await asyncio.to_thread(end.recv)
        before = resident_bytes()
        visitors = [Visitor(app, first + number) for number in range(1, count + 1)]
        for at in range(0, count, AT_ONCE):
            await asyncio.gather(*(visitor.open() for visitor in visitors[at : at + AT_ONCE]))
        end.send((resident_bytes() - before) / count)
        while await asyncio.to_thread(end.recv):
            reconciler = Reconciler(get_store())
            reconciler.beat()
            end.send((quickest(reconciler.beat, 5), quickest(reconciler.extend, EXTENSIONS)))

    asyncio.run(together())


class Holder:
    """A process that opens so many sockets, of users from ``first`` on, and holds them inside the block."""

    def __init__(self, kind: str, count: int, first: int = 0) -> None:
        self._count = count
        self._end, far = SPAWN.Pipe()
        self._process = SPAWN.Process(target=hold, args=(far, kind, count, first), daemon=True)

    def opened(self, patience: float = PATIENCE) -> float:
        """Bytes of each socket there, once all are open."""
        self._end.send("open")
        assert self._end.poll(patience), f"{self._count} sockets were not opened"
        return float(self._end.recv())

    def beaten(self) -> tuple[float, float]:
        """Seconds that a beat takes there, and that extending the TTL of all keys takes."""
        self._end.send("beat")
        assert self._end.poll(PATIENCE), "no beat was made"
        beat, extension = self._end.recv()
        return beat, extension

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Holder:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._end.close()


class Held(NamedTuple):
    """Bytes a socket, here and in Redis; commands a second with those that scripts give, and scripts a second."""

    here: float
    redis: float
    commands: float
    scripts: float


def rows(url: str, rounds: int) -> Iterator[Row]:
    yield from _handshakes(url, rounds)
    yield from _messages(url, rounds)
    yield from _busy(url, rounds)


def _handshakes(url: str, rounds: int) -> Iterator[Row]:
    kinds = ("plain", "none", *HANDSHAKES)
    subjects = [Subject(kind, "sockets", "handshakes", (kind,), 3) for kind in kinds]
    results = compare([PING, *subjects], url, rounds)
    plain = results["plain"].took
    yield Row(SECTION, "connect and close, without the mixin", plain, "µs")
    for kind, what in {"none": "no rule", **HANDSHAKES}.items():
        more = results[kind].took - plain
        note = f"{more / results[PING.name].took:.1f} PINGs"
        yield Row(SECTION, f"the mixin adds, {what}", more, "µs", asked=200.0 if kind == "cap" else None, note=note)


def _messages(url: str, rounds: int) -> Iterator[Row]:
    kinds = ("plain", "none", *MESSAGES)
    results = compare([Subject(kind, "sockets", "messages", (kind,), 10) for kind in kinds], url, rounds)
    plain = results["plain"].took
    yield Row(SECTION, "a message and its answer, without the mixin", plain, "µs")
    for kind, what in {"none": "no rule", **MESSAGES}.items():
        result, asked = results[kind], 12.0 if kind == "shared" else None
        note = f"Redis {result.redis:.2f} µs"
        yield Row(SECTION, f"the mixin adds, {what}", result.took - plain, "µs", asked=asked, note=note)


def _busy(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject(kind, "sockets", "busy", (kind,), IN_FLIGHT_CALLS) for kind in ("none", "shared")]
    results = compare([*subjects, Subject("aacquire", "sockets", "asked", (), IN_FLIGHT_CALLS)], url, rounds)
    none, shared, call = (results[name].took for name in ("none", "shared", "aacquire"))
    more = shared - none
    yield Row(SECTION, "a message, 50 sockets at once: a shared rule adds", more, "µs", more / call, "aacquire", 1.5)


def silent_rows(url: str, seconds: int) -> Iterator[Row]:
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
        with Holder(kind, count) as holder:
            here = holder.opened()
            taken = (server.info("memory")["used_memory"] - before) / count
            commands, scripts = commands_a_second(server, seconds)
        server.flushdb()
    return Held(here, taken, commands, scripts)


def commands_a_second(server: Redis, seconds: float) -> tuple[float, float]:
    """With those that scripts give, and scripts alone, while all is silent for so many seconds."""
    first, start = redis_commands(server), time.monotonic()
    time.sleep(seconds)
    last, took = redis_commands(server), time.monotonic() - start
    commands, scripts = ((new - old) / took for new, old in zip(last, first, strict=True))
    return commands, scripts
