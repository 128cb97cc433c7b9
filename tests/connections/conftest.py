"""Sites: stores that stand for processes. Workers: real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Rule
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.local import process_identity
from django_throttle.stores import RedisStore
from tests.clock import FrozenClock
from tests.connections.worker import RULE, SECRET
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
QUICK = {"PROCESS_TTL": 1.0, "DATABASE_RULES": False, "DEADLINE": 5.0}

BATCHING = ("connections.processes", "connections.reconcile", "stores.redis.transport")  # modules with a BATCH


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

    def settle(self) -> bool:
        """Beat, and do all that follows from it; False while Redis does not answer."""
        try:
            self.beat()
            while self.reconciler.resend() is not None:
                pass
        except StoreError:
            return False
        return True


class Program:
    """A process of ours; it is killed at the end of the test."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Have a worker do something; see worker.py."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        return json.loads(self.line())

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        """End a command; returns its status and the rest of its output."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=30)
        return self.process.returncode, output

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.process.communicate()


MakeSite = Callable[..., Site]
MakeWorker = Refresh = Callable[..., Program]


@pytest.fixture
def quick(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **QUICK}


@pytest.fixture
def run(servers: None) -> Iterator[Callable[..., Program]]:
    with ExitStack() as stack:
        yield lambda *command, **environment: stack.enter_context(closing(Program(*command, **environment)))


@pytest.fixture
def make_worker(run: Callable[..., Program], redis_url: str, quick: None) -> MakeWorker:
    return lambda **settings: run("tests.connections.worker", json.dumps({"REDIS": redis_url, **QUICK, **settings}))


@pytest.fixture
def refreshing(run: Callable[..., Program], redis_url: str) -> Refresh:
    site = {"DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": "", "PYTHONPATH": str(ROOT)}
    return lambda *options, url=redis_url: run("django", "refresh_connections", *options, REDIS_URL=url, **site)


@pytest.fixture
def site(redis_url: str, quick: None) -> Site:
    """An onlooker that holds nothing and beats only when a test says so."""
    return Site(redis_url)


@pytest.fixture
def make_site(redis_url: str, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> MakeSite:
    """Sites that share a Redis and a clock that stands still; each may bury others from its second beat on."""
    monkeypatch.setattr("django_throttle.connections.processes.STEADY_BEATS", 0)
    return lambda url=redis_url: Site(url, clock)


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    process_identity.describe(0)  # which a process finds out once
    monkeypatch.setattr("django_throttle.local.process_identity.host", lambda: "another/1/2")


def go_on(clock: FrozenClock, seconds: float, *living: Site) -> None:
    for _ in range(4):
        clock.step(seconds / 4)
        for site in living:
            site.beat()


def keys(redis: Redis) -> dict[str, int]:
    return {key: redis.pttl(key) for key in redis.scan_iter()}  # type: ignore[misc]


def raise_away(*_: Any) -> None:
    raise StoreError(Cause.UNAVAILABLE)
