"""Callers that keep calling while servers fail: how long nothing was decided together, and the longest call."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from django_throttle.core import Decision, Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from testproject.check.standstill import elapsed, watch

DEADLINE = 0.1
EVERY = 0.005
LOAD = Rule("load", "1000000/366d", algorithm="fixed_window", on_store_failure="deny")


@dataclass
class KeyedCaller:
    """One driver's calls: when each ended, how long it took, and what was decided."""

    calls: list[tuple[float, float, Decision]] = field(default_factory=list)

    def note(self, started: float, decision: Decision) -> None:
        self.calls.append((time.monotonic(), elapsed(started), decision))

    def outage(self, since: float) -> float:
        """Seconds from a moment to the first decision after which none was degraded."""
        bad = [at for at, _, decision in self.calls if decision.degraded and at > since]
        return min((at for at, _, _ in self.calls if bad and at > bad[-1]), default=since) - since

    def is_back(self, since: float) -> bool:
        return self.outage(since) > 0 and not self.calls[-1][2].degraded

    def slowest(self) -> float:
        return max(took for _, took, _ in self.calls)

    def shared(self) -> int:
        return sum(not decision.degraded for _, _, decision in self.calls)


def errors_since(moment: float, records: Sequence[logging.LogRecord]) -> list[str]:
    """What was logged as an error; that a loop stood still is none where the machine did."""
    found = [record.getMessage() for record in records if record.levelno >= logging.ERROR]
    return [text for text in found if not (watch.still_since(moment) and "blocks the event loop" in text)]


@contextmanager
def calling(url: str, ident: str) -> Iterator[tuple[KeyedCaller, KeyedCaller]]:
    """Both drivers call until the block ends, each from a thread of its own; raises what either has raised."""
    callers, done = (KeyedCaller(), KeyedCaller()), threading.Event()

    def run() -> None:
        limiter = Limiter([LOAD], RedisStore(url, deadline=DEADLINE))
        while not done.wait(EVERY):
            started = time.monotonic()
            callers[0].note(started, limiter.acquire(ident))

    async def arun() -> None:
        limiter = Limiter([LOAD], RedisStore(url, deadline=DEADLINE))
        while not done.is_set():
            await asyncio.sleep(EVERY)
            started = time.monotonic()
            callers[1].note(started, await limiter.aacquire(ident))

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run), pool.submit(lambda: asyncio.run(arun()))]
        try:
            yield callers
        finally:
            done.set()
    for each in running:
        each.result()
