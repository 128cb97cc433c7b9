"""A crowd that leaves at once gives its leases back in batches: decisions come between, and no failure loses one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Lease, Rule
from django_throttle.core.commands import Release
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from testproject.check.standstill import elapsed
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.sockets.guarded import becomes

CROWD = 1000
LIMIT = 10 * CROWD
SOCKETS = Rule("sockets", limit=LIMIT, algorithm="concurrency", events=("connection",))
API = Rule("api", "1000000/h")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


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
    commands = [Release(lease.id, lease.holds) for lease in await crowd(limiter, 3)]
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


async def test_one_that_comes_while_others_are_on_their_way_is_not_overtaken_either(servers: None) -> None:
    with RedisServer() as server:
        store = RedisStore(server.url, deadline=5.0)
        limiter = Limiter([Rule("one", limit=1, algorithm="concurrency", events=("connection",))], store)
        others = Limiter([API], store)
        mine, first, second = [(await limiter.aacquire(f"user:{at}")).lease for at in range(3)]
        assert mine and first and second
        await limiter.arelease(first)
        await others.aacquire("user:9")  # the scripts are there now
        server.pause()
        store.release_soon(Release(second.id, second.holds))
        before = asyncio.create_task(others.aacquire("user:9"))
        for _ in range(5):  # turns of the loop: those two are on their way
            await asyncio.sleep(0)
        store.release_soon(Release(mine.id, mine.holds))
        again = asyncio.create_task(limiter.aacquire("user:0"))
        for _ in range(5):
            await asyncio.sleep(0)
        server.resume()
        assert (await before).allowed and (await again).allowed
        await becomes(lambda: not store.leases.unconfirmed())
