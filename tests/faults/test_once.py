"""One logical call is applied at most once, whatever is lost on the way, and what was taken in vain comes back."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.faults.conftest import KeyedCaller, used
from tests.proxy import Mode, Proxy
from tests.servers import RedisServer, wait_until

COUNT = Rule("count", "1000/h", algorithm="fixed_window", on_store_failure="allow")
CAP = Rule("cap", limit=1000, algorithm="concurrency", on_store_failure="allow")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("swallow_reply", marks=pytest.mark.row("F04")),
        pytest.param("swallow_and_close", marks=pytest.mark.row("F05")),
        pytest.param("reset", marks=pytest.mark.row("F09")),
    ],
)
def test_a_lost_reply_is_not_asked_again(
    mode: Mode, server: RedisServer, proxy: Proxy, caller: Callable[..., KeyedCaller]
) -> None:
    call = caller(proxy.url, COUNT, CAP)
    for _ in range(3):  # a lost reply costs the connection, so each time a new one is warmed up
        proxy.set("pass")
        assert not (call.surely().degraded or call.surely().degraded)
        proxy.set(mode)
        assert call().degraded
    wait_until(lambda: used(server, COUNT) == 9)


@pytest.mark.row("F04")
def test_under_local_a_lost_reply_counts_twice(
    server: RedisServer, proxy: Proxy, caller: Callable[..., KeyedCaller]
) -> None:
    local = replace(COUNT, on_store_failure="local")
    call = caller(proxy.url, local)
    call.surely()
    proxy.set("swallow_reply")
    assert call().degraded  # admitted here, and on its way there
    wait_until(lambda: used(server, local) == 2)
    proxy.set("pass")
    for _ in range(2):
        call.store.fallback.flush()
        assert used(server, local) == 3


@pytest.mark.row("F48")
async def test_a_cancelled_call_leaves_its_connection_clean(server: RedisServer, proxy: Proxy) -> None:
    limiter = Limiter([COUNT], RedisStore(proxy.url, deadline=5.0, max_connections=4))
    await limiter.aacquire("user:1")
    proxy.set("delay", 0.02)
    for step in range(20):
        task = asyncio.create_task(limiter.aacquire("user:1"))
        await asyncio.sleep(step * 0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    proxy.set("pass")
    for number in range(12):
        decision = await limiter.aacquire(f"other:{number % 4}")
        assert not decision.degraded
        assert decision.remaining == 999 - number // 4, "the reply of another call"
    assert 1 <= used(server, COUNT) <= 21
    assert not limiter.store.breaker.is_open  # type: ignore[attr-defined]


@pytest.mark.row("F48")
async def test_leases_of_cancelled_calls_come_back(server: RedisServer, proxy: Proxy) -> None:
    store = RedisStore(proxy.url, deadline=5.0, max_connections=60)
    limiter = Limiter([CAP], store)
    first = await limiter.aacquire("user:1")
    proxy.set("delay", 0.05)
    tasks = [asyncio.create_task(limiter.aacquire("user:1")) for _ in range(60)]
    for task in tasks:
        await asyncio.sleep(0.002)
        task.cancel()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(answer, asyncio.CancelledError) for answer in told)
    assert cancelled > 0
    proxy.set("pass")
    await asyncio.to_thread(settle, store, server, 1 + len(tasks) - cancelled)
    for decision in (first, *(answer for answer in told if not isinstance(answer, BaseException))):
        await limiter.arelease(decision.lease)
    assert used(server, CAP) == 0


def settle(store: RedisStore, server: RedisServer, held: int) -> None:
    reconciler = Reconciler(store)

    def settled() -> bool:
        with suppress(StoreError):  # a connection that was begun during the fault may still be made
            reconciler.resend()
        return used(server, CAP) == held

    wait_until(settled)


@pytest.mark.parametrize("mode", ["swallow_reply", "refuse"])
def test_a_lost_release_is_sent_again_and_a_lost_lease_held_once(
    mode: Mode, server: RedisServer, proxy: Proxy, caller: Callable[..., KeyedCaller]
) -> None:
    call = caller(proxy.url, CAP)
    leases = [call.surely().lease for _ in range(3)]
    assert used(server, CAP) == 3
    proxy.set(mode)
    for _ in range(2):
        call.limiter.release(leases[0])
    assert call().degraded  # and let through, so it is open
    proxy.set("pass")
    settle(call.store, server, 3)
