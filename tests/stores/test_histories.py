"""What Redis has counted is what callers were told, give or take the calls of which nobody knows."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.failures import ClosedBreaker
from tests.crew import Crew
from tests.proxy import Proxy
from tests.servers import RedisServer

LIMIT = 1_000_000
RULE = Rule("history", f"{LIMIT}/366d", algorithm="fixed_window", on_store_failure="allow")
PROCESSES, THREADS, CALLS = 4, 3, 60


def history(number: int, url: str) -> tuple[int, int]:
    """Calls of threads and of tasks of one process: how many were surely counted, how many perhaps."""
    store = RedisStore(url, deadline=0.15, max_connections=THREADS + 1)
    store.breaker = ClosedBreaker()  # each call is to be sent, however many before it were lost
    limiter = Limiter([RULE], store)

    def in_thread() -> list[bool]:
        return [limiter.acquire("user:1").degraded for _ in range(CALLS)]

    async def in_tasks() -> list[bool]:
        told = []
        for _ in range(CALLS // 5):
            told += await asyncio.gather(*(limiter.aacquire("user:1") for _ in range(5)))
        return [decision.degraded for decision in told]

    with ThreadPoolExecutor(THREADS + 1) as threads:
        runs = [threads.submit(in_thread) for _ in range(THREADS)]
        runs.append(threads.submit(asyncio.run, in_tasks()))
        degraded = [told for run in runs for told in run.result()]
    return degraded.count(False), degraded.count(True)


def trouble(proxy: Proxy, over: threading.Event) -> None:
    chance = random.Random(7)
    while not over.wait(0.02):
        proxy.set(chance.choice(["pass", "pass", "pass", "swallow_reply", "swallow_and_close", "reset"]))
    proxy.set("pass")


@pytest.mark.row("F04", "F05")
def test_ok_calls_are_counted_and_lost_ones_at_most_once(
    redis_server: RedisServer, redis_url: str, servers: None, figure: Callable[..., None]
) -> None:
    over = threading.Event()
    with Proxy(redis_server.port) as proxy, closing(Crew(PROCESSES)) as crew:
        culprit = threading.Thread(target=trouble, args=(proxy, over))
        culprit.start()
        told = crew.run(history, proxy.url)
        over.set()
        culprit.join()
        time.sleep(0.05)  # what is still on its way
    ok, perhaps = (sum(column) for column in zip(*told, strict=True))
    remaining = Limiter([RULE], RedisStore(redis_url, deadline=5.0)).peek("user:1").remaining
    counted = LIMIT - (remaining or 0)
    figure(f"counted, {ok} surely and {perhaps} perhaps,", counted)
    assert ok + perhaps == PROCESSES * (THREADS + 1) * CALLS
    assert ok <= counted <= ok + perhaps
    assert ok > 0 and perhaps > 0
