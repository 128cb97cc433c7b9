"""What the mixin costs beside the same consumer without it, through the ASGI interface: a server would hide it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from redis import Redis

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, get_store
from tests.lab.benchmarks.decisions import PING
from tests.lab.benchmarks.player import IN_FLIGHT, Play, Row, Started, Subject, compare, in_flight, redis_commands
from tests.servers import quickest

FEW, MANY = 100, 10_000
AT_ONCE = 200  # handshakes under way while many are opened
EXTENSIONS = 2  # of all times to live, the quickest of which counts
SECTION = "sockets"
HANDSHAKES = {"cap": "a cap", "door": "a cap and a rate"}
MESSAGES = {"own": "a rule of the socket's own", "shared": "a rule shared in Redis"}


CAP: dict[str, Any] = {"limit": 5, "algorithm": "concurrency", "events": ["connection"], "key": "user"}
RATE: dict[str, Any] = {"rate": "1000000/s", "events": ["connect"], "key": "user"}
OWN: dict[str, Any] = {"rate": "1000000/s", "events": ["message"], "key": "connection", "algorithm": "gcra"}
SHARED: dict[str, Any] = {"rate": "1000000/s", "events": ["message"], "key": "user"}
# What guards a socket, by the name of the kind; without the mixin nothing can.
RULES: dict[str, dict[str, Any]] = {
    "plain": {}, "none": {}, "cap": {"cap": CAP}, "door": {"cap": CAP, "rate": RATE}, "own": {"own": OWN},
    "shared": {"shared": SHARED},
}  # fmt: skip


class Plain(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


class Guarded(ThrottledConsumerMixin, Plain):
    throttle_scope = "bench"


def under(kind: str) -> None:
    """Put the rules of this kind in force, in a process that has not asked for any yet."""
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": RULES[kind]}


def consumer(kind: str) -> Any:
    return (Plain if kind == "plain" else Guarded).as_asgi()


class Visitor:
    __slots__ = ("_app", "_inbox", "_outbox", "_scope", "_task")

    def __init__(self, app: Any, number: int) -> None:
        user = SimpleNamespace(is_authenticated=True, is_active=True, pk=number)
        self._scope = {"type": "websocket", "path": "/bench", "client": ["203.0.113.9", 1], "headers": [], "user": user}
        self._app = app
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(self._scope, self._inbox.get, self._outbox.put))
        assert (await self._outbox.get())["type"] == "websocket.accept"

    async def say(self, text: str) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})
        assert (await self._outbox.get())["text"] == text

    async def close(self) -> None:
        assert self._task is not None
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self._task


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def handshakes(url: str, kind: str) -> Play:
    under(kind)
    app, loop = consumer(kind), asyncio.new_event_loop()

    async def come_and_go(calls: int) -> None:
        for _ in range(calls):
            visitor = Visitor(app, 1)
            await visitor.open()
            await visitor.close()

    return lambda calls: loop.run_until_complete(come_and_go(calls))


def messages(url: str, kind: str) -> Play:
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
    loop, visitors = asyncio.new_event_loop(), [Visitor(consumer(kind), number) for number in range(IN_FLIGHT)]

    async def talk(visitor: Visitor, calls: int) -> None:
        for _ in range(calls):
            await visitor.say("hello")

    async def together(calls: int) -> None:
        await asyncio.gather(*(talk(visitor, -(-calls // IN_FLIGHT)) for visitor in visitors))

    for visitor in visitors:
        loop.run_until_complete(visitor.open())
    return lambda calls: loop.run_until_complete(together(calls))


def asked(url: str) -> Play:
    rule = Rule.from_options("shared", RULES["shared"]["shared"])
    return in_flight(Limiter([rule], RedisStore(url, deadline=5)).aacquire)


def hold(end: Connection, count: int, first: int) -> None:
    """When told to, open so many and say how many bytes each takes; then beat and extend, and say the seconds."""
    import django

    django.setup()
    under("cap")
    app = consumer("cap")

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


def holder(count: int, first: int = 0) -> Started:
    """Start a process that opens so many sockets, of users from ``first`` on, and holds them until it is closed."""
    return Started(f"the process of {count} sockets", hold, count, first)


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
        result = results[kind]
        note = f"Redis {result.redis:.2f} µs"
        yield Row(SECTION, f"the mixin adds, {what}", result.took - plain, "µs", note=note)


def _busy(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject(kind, "sockets", "busy", (kind,), 100) for kind in ("none", "shared")]
    results = compare([*subjects, Subject("aacquire", "sockets", "asked", (), 100)], url, rounds)
    none, shared, call = (results[name].took for name in ("none", "shared", "aacquire"))
    more = shared - none
    yield Row(SECTION, "a message, 50 sockets at once: a shared rule adds", more, "µs", more / call, "aacquire", 1.5)


def silent_rows(url: str, seconds: int) -> Iterator[Row]:
    found = []
    for count in (FEW, MANY):
        with Redis.from_url(url) as server, closing(holder(count)) as process:
            process.ask("open")
            found.append(commands_a_second(server, seconds))
            server.flushdb()
    (few, few_scripts), (commands, scripts) = found
    silent, beside = f"{MANY:,} silent sockets", f"{FEW:,}"
    yield Row(SECTION, f"{FEW:,} silent sockets: Redis commands", few, "/s")
    yield Row(SECTION, f"{silent}: Redis commands", commands, "/s", commands / few, beside, 1.1)
    yield Row(SECTION, f"{silent}: scripts sent", scripts, "/s", scripts / few_scripts, beside, 1.1)


def commands_a_second(server: Redis, seconds: float) -> tuple[float, float]:
    """With those that scripts give, and scripts alone, while all is silent for so many seconds."""
    first, start = redis_commands(server), time.monotonic()
    time.sleep(seconds)
    last, took = redis_commands(server), time.monotonic() - start
    commands, scripts = ((new - old) / took for new, old in zip(last, first, strict=True))
    return commands, scripts
