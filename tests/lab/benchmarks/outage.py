"""How long a decision takes while Redis is a black hole: nothing comes back, no connection ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.player import SPAWN
from tests.lab.benchmarks.table import Row
from tests.proxy import Mode, Proxy

DEADLINE = 0.1
ASKED = (DEADLINE + 0.05) * 1000
AFTER = 2000
SECTION = "Redis black-holed (deadline 100 ms)"


def suffer(url: str, end: Any, asynchronous: bool) -> None:
    """In a process of its own: decide once, say so, and when told decide until the breaker is open, and then."""
    import django

    django.setup()
    logging.disable()
    store = RedisStore(url, deadline=DEADLINE)
    limiter = Limiter((Rule("bench", "1000000/s"),), store)
    with asyncio.Runner() as runner:

        def decide() -> float:
            start = time.perf_counter()
            decision = runner.run(limiter.aacquire("user:1")) if asynchronous else limiter.acquire("user:1")
            took = time.perf_counter() - start
            assert decision.allowed
            return took * 1000

        decide()
        end.send("ready")
        end.recv()
        before = [decide()]
        while not store.breaker.is_open:
            before.append(decide())
        # The breaker lets a probe through now and then: that one may take the whole deadline.
        end.send((max(before), sorted(decide() for _ in range(AFTER))))


def rows(port: int) -> Iterator[Row]:
    modes: tuple[Mode, ...] = ("dead", "swallow_reply")
    for mode in modes:
        for asynchronous in (False, True):
            slowest, after = _suffered(port, mode, asynchronous)
            what = f"{mode.replace('_', ' ')}, {'async' if asynchronous else 'sync'}"
            yield Row(SECTION, f"{what}: slowest, breaker closed", slowest, "ms", asked=ASKED)
            yield Row(SECTION, f"{what}: p99, breaker open", after[len(after) * 99 // 100], "ms", asked=1.0)


def _suffered(port: int, mode: Mode, asynchronous: bool) -> tuple[float, list[float]]:
    near, far = SPAWN.Pipe()
    with Proxy(port) as proxy:
        process = SPAWN.Process(target=suffer, args=(proxy.url, far, asynchronous), daemon=True)
        process.start()
        try:
            assert near.poll(30) and near.recv() == "ready"
            proxy.set(mode)
            near.send("go")
            assert near.poll(30)
            slowest, after = near.recv()
            return slowest, after
        finally:
            process.kill()
            process.join()
