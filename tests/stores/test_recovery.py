"""Nothing is lost around an outage, or as a crowd leaves, and nothing remembered for too long."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Lease, Rule
from django_throttle.core.commands import Release
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.failures import Breaker
from testproject.check.standstill import elapsed
from tests.proxy import Proxy
from tests.servers import wait_until
from tests.websockets.guarded import becomes

CAP = Rule("cap", limit=1, algorithm="concurrency", on_store_failure="allow")


def test_what_was_let_through_without_redis_is_counted_when_it_is_back(proxy: Proxy) -> None:
    store: Any = RedisStore(proxy.url, deadline=0.1)
    limiter = Limiter([CAP], store)
    proxy.set("dead")
    let_through = [limiter.acquire("user:1") for _ in range(3)]
    assert all(decision.allowed and decision.degraded for decision in let_through)
    assert len(store.leases) == 3, "all of them are open, whatever the limit"
    proxy.set("pass")
    proxy.cut()
    store.breaker = Breaker()
    reconciler = Reconciler(store)
    reconciler.beat()
    reconciler.resend()
    elsewhere = Limiter([CAP], RedisStore(proxy.url, deadline=5.0))
    for decision in let_through:
        refused = elsewhere.acquire("user:1")
        assert (refused.allowed, refused.degraded) == (False, False)
        limiter.release(decision.lease)
    reconciler.resend()
    assert elsewhere.acquire("user:1").allowed
    assert len(store.leases) == 0


def test_each_outage_has_one_line_at_its_end(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    store: Any = RedisStore(proxy.url, deadline=0.1)
    limiter = Limiter([Rule("rate", "1000/hour")], store)
    for _ in range(2):
        caplog.clear()
        proxy.set("refuse")
        wait_until(lambda: limiter.acquire("user:1").degraded and store.breaker.is_open)
        proxy.set("pass")
        wait_until(lambda: not limiter.acquire("user:1").degraded)
        limiter.acquire("user:1")
        down, up = [record.getMessage() for record in caplog.records]
        assert down.startswith("Redis does not answer") and re.fullmatch(r"Redis answers again, after \d+\.\d s", up)


CROWD = 1000
LIMIT = 10 * CROWD
SOCKETS = Rule("sockets", limit=LIMIT, algorithm="concurrency", events=("connection",))
API = Rule("api", "1000000/h")


async def crowd(limiter: Limiter, number: int) -> list[Lease]:
    decisions = [await limiter.aacquire("user:1") for _ in range(number)]
    return [decision.lease for decision in decisions if decision.lease]


@pytest.mark.row("A43")
async def test_others_are_decided_meanwhile(redis_url: str, figure: Callable[..., None]) -> None:
    store = RedisStore(redis_url, deadline=5.0, max_connections=2)
    limiter, others = Limiter([SOCKETS], store), Limiter([API], store)
    leases = await crowd(limiter, CROWD)
    leaving, decided, longest = asyncio.gather(*map(limiter.arelease, leases)), [], 0.0
    while not leaving.done():
        began = time.monotonic()
        decided.append(await others.aacquire("user:2"))
        longest = max(longest, elapsed(began))
        await asyncio.sleep(0)
    await leaving
    figure(f"longest decision of others while {CROWD:,} slots are given back", longest * 1000, "ms")
    assert len(decided) >= 2, "between batches"
    assert not any(decision.degraded for decision in decided)
    assert (await limiter.apeek("user:1")).remaining == LIMIT
    assert (store.leases.unconfirmed(), len(store.leases)) == ([], 0)


async def test_one_that_nobody_waits_for_is_lost_by_no_failure(proxy: Proxy, redis_url: str) -> None:
    store = RedisStore(proxy.url, deadline=1.0)
    limiter = Limiter([SOCKETS], store)
    commands = [Release(lease.id, lease.lease_keys) for lease in await crowd(limiter, 3)]
    store.release_soon(commands[0])
    assert len(store.leases) == 2, "at once"
    await becomes(lambda: not store.leases.unconfirmed())
    proxy.set("dead")
    store.release_soon(commands[1])
    await becomes(lambda: not store.breaker.is_calm)
    store.release_soon(commands[2])
    assert (len(store.leases), len(store.leases.unconfirmed())) == (0, 2)
    proxy.set("pass")
    proxy.cut()
    await asyncio.to_thread(Reconciler(store).resend)
    assert (await Limiter([SOCKETS], RedisStore(redis_url, deadline=5.0)).apeek("user:1")).remaining == LIMIT
