"""A master that is cut off from its Sentinels and its replica, and not from us: we leave it within a beat."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from django_throttle.connections.refresher import Refresher
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.fleet import READY, Guarded, GuardedSentinels
from tests.servers import slack

BEAT = 0.5
LIMIT = 100
RULE = Rule("hundred", f"{LIMIT}/366d")


@pytest.fixture
def sentinels() -> Iterator[GuardedSentinels]:
    with GuardedSentinels() as servers:
        yield servers


def test_both_drivers_leave_it_within_a_beat(sentinels: GuardedSentinels) -> None:
    """At most two limits pass, the old master's and the new one's, and the old one counts nothing from then on."""
    old = sentinels.master()
    assert isinstance(old, Guarded)
    store = RedisStore(sentinels.url, deadline=5.0)
    limiter, refresher, done = Limiter([RULE], store), Refresher(store), threading.Event()
    admitted = [0]

    def beat() -> None:
        while not done.wait(BEAT):
            refresher.beat()

    async def use_both() -> bool:
        """Whether both drivers are decided by the new master."""
        admitted[0] += limiter.acquire("user:1").allowed
        admitted[0] += (await limiter.aacquire("user:1")).allowed
        limiter.acquire("user:2", cost=0)
        await asyncio.sleep(0.02)
        return store.link.failovers > 0

    async def follow() -> float:
        while not admitted[0]:
            await use_both()
        old.cut_off()
        while await asyncio.to_thread(sentinels.master) is old:
            await use_both()
        named = time.monotonic()
        async with asyncio.timeout(READY):
            while not await use_both():
                pass
        left = time.monotonic() - named
        before = commands(old)
        for _ in range(50):
            await use_both()
        assert commands(old) == before, "the old master is still asked"
        return left

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        took = asyncio.run(follow())
    finally:
        done.set()
        thread.join()
    print(f"left the old master {took:.2f} s after the Sentinels named another, with a beat of {BEAT} s")
    assert took < slack(BEAT + 0.5)
    assert LIMIT <= admitted[0] <= 2 * LIMIT


def commands(server: Guarded) -> int:
    """The scripts that it has run."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))
