"""Stores that are processes, and processes that are real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.clock import FrozenClock
from tests.connections.worker import RULE, SECRET
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
# A tenth of the defaults; assertions are in proportion.
QUICK = {"BEAT_INTERVAL": 0.5, "PROCESS_TTL": 2.0, "DATABASE_RULES": False, "DEADLINE": 5.0}

BATCHING = ("connections.processes", "connections.reconcile", "stores.transport")  # modules with a BATCH


class Site:
    """One store, its leases and its reconciler: a process, as far as Redis can tell."""

    def __init__(self, url: str, clock: FrozenClock | None = None, rule: Rule = RULE) -> None:
        self.store = RedisStore(url, clock=clock, secret=SECRET, deadline=5.0)
        self.leases = self.store.leases
        self.limiter = Limiter([rule], self.store)
        self.reconciler = Reconciler(self.store)
        self.rule = rule

    def take(self, ident: str, times: int = 1) -> list[Decision]:
        return [self.limiter.acquire(ident) for _ in range(times)]

    def count(self, ident: str) -> int:
        """The connections open under an ident, as a decision sees them."""
        decision = self.limiter.peek(ident)
        assert decision.limit is not None and decision.remaining is not None
        assert not decision.degraded
        return decision.limit - decision.remaining

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconciler.beat()


class Worker:
    """A real process that holds connections; see worker.py."""

    def __init__(self, **settings: Any) -> None:
        command = [sys.executable, "-m", "tests.connections.worker", json.dumps({**QUICK, **settings})]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True, bufsize=1
        )

    def ask(self, verb: str, *arguments: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        return json.loads(self.process.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: it has no say in what becomes of its connections."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """End as a process does that has been asked to."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe and not pipe.closed:
                pipe.close()


@pytest.fixture
def quick(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **QUICK}


@pytest.fixture
def make_worker(redis_url: str, quick: None) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(**settings: Any) -> Worker:
        workers.append(Worker(**{"REDIS": redis_url, **settings}))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def make_site(redis_url: str, clock: FrozenClock) -> Callable[..., Site]:
    """Sites that share a Redis and a clock that stands still."""

    def make(**options: Any) -> Site:
        return Site(redis_url, **{"clock": clock, **options})

    return make


@pytest.fixture
def steady_at_the_second_beat(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "BEAT_INTERVAL": 0.0}


@pytest.fixture
def redis(redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


def go_on(clock: FrozenClock, seconds: float, *living: Site) -> None:
    """Time passes, in which these processes beat."""
    for _ in range(4):
        clock.step(seconds / 4)
        for site in living:
            site.beat()


def commands(redis: Redis) -> int:
    """Every command that Redis has carried out, those inside scripts included, save for asking this."""
    stats: dict[str, Any] = redis.info("commandstats")  # type: ignore[assignment]
    return sum(figures["calls"] for name, figures in stats.items() if name != "cmdstat_info")


def keys(redis: Redis) -> dict[str, int]:
    return {key: redis.pttl(key) for key in redis.scan_iter()}  # type: ignore[misc]


def raise_unavailable(*_: Any) -> None:
    raise ConnectionError("away")
