"""What a beat costs Redis while a process holds few and many connections."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from django_throttle.conf import conf
from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.player import Play, Subject, company, redis_commands
from tests.lab.benchmarks.table import Row

FEW, MANY, BEATS = 100, 10_000, 10
SECTION = "open connections"


def beating(url: str, held: int) -> Play:
    """So many beats of a process that holds leases taken through the limiter."""
    reconciler = _holding(url, held)

    def play(calls: int) -> None:
        for _ in range(calls):
            reconciler.beat()

    return play


def extending(url: str, held: int) -> Play:
    reconciler = _holding(url, held)

    def play(calls: int) -> None:
        for _ in range(calls):
            reconciler.extend()

    return play


def rows(url: str, few: int = FEW, many: int = MANY) -> Iterator[Row]:
    seconds, extend_seconds = conf().BEAT_INTERVAL, conf().EXTEND_INTERVAL
    costs = {held: _sent(url, "beating", held, BEATS) for held in (few, many)}
    for held, (inner, _) in costs.items():
        ratio, asked = (inner / costs[few][0], 1.1) if held == many else (None, None)
        what = f"beat with {held:,} of them: Redis commands"
        yield Row(SECTION, what, inner / seconds, "/s", ratio, f"{few:,}" if ratio else "", asked)
    _, calls = _sent(url, "extending", many, 1)
    what = f"TTL extension, commands a key in {extend_seconds:.0f} s"
    yield Row(SECTION, what, calls / many, "", asked=1.0)


def _sent(url: str, make: str, held: int, calls: int) -> tuple[float, float]:
    """Commands a call: with those that scripts gave, and those that were sent."""
    subject = Subject(f"{make} {held}", "beat", make, (held,))
    with Redis.from_url(url) as server, company([subject], url) as (player,):
        before = redis_commands(server)
        player.tell(calls)
        after = redis_commands(server)
        server.flushdb()
    return tuple((new - old) / calls for new, old in zip(after, before, strict=True))  # type: ignore[return-value]


def _holding(url: str, held: int) -> Reconciler:
    store = RedisStore(url, deadline=5)
    limiter = Limiter((Rule("sockets", limit=5, algorithm="concurrency"),), store)
    for number in range(held):
        assert limiter.acquire(f"user:{number}").lease
    return Reconciler(store)
