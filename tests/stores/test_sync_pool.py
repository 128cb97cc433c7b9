"""Connections come back from every failure, are looked at after a rest, and go to whoever has waited longest."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from redis.exceptions import NoScriptError, ResponseError

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore, sync_pool
from django_throttle.stores.addresses import find_address
from django_throttle.stores.clients import sync_client
from django_throttle.stores.failures import Breaker
from django_throttle.stores.sync_pool import Pool, pack
from django_throttle.stores.timeouts import Deadline
from tests.inside import ask, nobody_wakes
from tests.proxy import Proxy
from tests.servers import RedisServer, wait_until

RULE = Rule("rule", "1000/hour", algorithm="fixed_window", timezone="UTC")
PING = pack(("PING",))


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as own:
        yield own


def probe(limiter: Limiter) -> bool:
    """One call that no breaker holds back: whether it was decided without Redis."""
    limiter.store.breaker = Breaker()  # type: ignore[attr-defined]
    return limiter.acquire("user:1").degraded


def test_a_long_hang_uses_no_connection_up(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_pool, "IDLE_SECONDS", -1.0)  # as if every probe came after a long pause
    store = RedisStore(server.url, deadline=5.0, max_connections=2)
    limiter = Limiter([replace(RULE, on_store_failure="allow")], store)
    assert limiter.acquire("user:1").remaining == 999
    store.transport.seconds = 0.05
    server.pause()
    try:
        assert all(probe(limiter) for _ in range(8))
    finally:
        server.resume()
    before = Limiter([RULE], RedisStore(server.url, deadline=5.0)).peek("user:1").remaining
    store.breaker, store.transport.seconds = Breaker(), 5.0
    with ThreadPoolExecutor(2) as threads:
        decisions = list(threads.map(limiter.acquire, ["user:1"] * 3))
    assert before is not None and not any(decision.degraded for decision in decisions)
    assert {decision.remaining for decision in decisions} == {before - 1, before - 2, before - 3}


def test_a_rested_connection_that_the_server_has_closed_is_noticed(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_pool, "IDLE_SECONDS", -1.0)  # as if every call came after a long rest
    limiter = Limiter([RULE], RedisStore(server.url, deadline=5.0))
    assert not limiter.acquire("user:1").degraded
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert not limiter.acquire("user:1").degraded


@pytest.fixture
def pool(redis_url: str) -> Iterator[Callable[..., Pool]]:
    """Makes a pool of so many connections, for which callers wait for so long."""
    pools: list[Pool] = []

    def make(size: int, seconds: float = 5.0) -> Pool:
        pools.append(Pool(sync_client(find_address(redis_url).settings, 5.0, size).connection_pool, size, seconds))
        return pools[-1]

    yield make
    for each in pools:
        each.close_idle()


def test_nobody_overtakes_those_who_wait(pool: Callable[..., Pool]) -> None:
    line = pool(1)
    held, order = line.post([PING]), []

    def take(name: str) -> None:
        connection = line.post([PING])
        order.append(name)
        line.collect(connection, 1)

    waiter = threading.Thread(target=take, args=("waiter",))
    waiter.start()
    with nobody_wakes(line):  # whoever is woken cannot run yet
        line.drop(held)
        take("newcomer")
    waiter.join()
    assert order == ["waiter", "newcomer"]


def test_nobody_waits_beside_a_free_connection(pool: Callable[..., Pool]) -> None:
    line = pool(2)
    held, done = [line.post([PING]) for _ in range(2)], threading.Event()

    def take() -> None:
        connection = line.post([PING])
        done.wait(20)
        line.collect(connection, 1)

    waiter = threading.Thread(target=take)
    waiter.start()
    with nobody_wakes(line):  # both come back, and a newcomer, before whoever is woken can run
        for connection in held:
            line.drop(connection)
        newcomer = line.post([PING])  # else it would wait for the one who waits for it
    done.set()
    waiter.join()
    line.drop(newcomer)


def test_waiting_ends_with_the_error_of_a_pool(pool: Callable[..., Pool]) -> None:
    line = pool(1, 0.01)
    held = line.post([PING])
    with pytest.raises(sync_pool.RedisConnectionError, match="Too many connections"):
        ask(line, "PING")
    line.collect(held, 1)
    assert ask(line, "PING") in (b"PONG", True)


def test_a_reply_of_any_shape_and_size_is_read(pool: Callable[..., Pool]) -> None:
    line = pool(1)
    large = b"x" * 200_000  # more than one read takes
    with Deadline(5.0):
        connection = ask(line, "CLIENT", "ID")
        ask(line, "SET", "large", large, "PX", 60_000)
        for _ in range(2):
            assert ask(line, "GET", "large") == large
            assert ask(line, "EVAL", "return {1, false, {'two', ''}}", 0) == [1, None, [b"two", b""]]
            one, error = ask(line, "EVAL", "return {1, redis.error_reply('ERR two')}", 0)
            assert (one, type(error)) == (1, ResponseError)
            with pytest.raises(NoScriptError):
                ask(line, "EVALSHA", "0" * 40, 0)
        assert ask(line, "CLIENT", "ID") == connection, "each was read to its end"


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_connection_to_what_became_a_replica_is_dropped(on_loop: bool, server: RedisServer) -> None:
    """The address names another server by now; whoever keeps the connection goes on asking the old one."""
    with RedisServer() as new, Proxy(server.port) as proxy, server.client() as admin, asyncio.Runner() as runner:
        limiter = Limiter([RULE], RedisStore(proxy.url, deadline=5.0))

        def is_degraded() -> bool:
            return (runner.run(limiter.aacquire("user:1")) if on_loop else limiter.acquire("user:1")).degraded

        assert not is_degraded()
        admin.replicaof("127.0.0.1", new.port)
        proxy.target = new.port
        assert [is_degraded() for _ in range(3)] == [True, False, False]


def test_who_drops_a_store_has_its_connections_closed(server: RedisServer) -> None:
    """A store is part of a cycle, so it is the garbage collector that ends it, in no order."""
    with server.client() as admin:
        for number in range(20):
            assert not Limiter([RULE], RedisStore(server.url, deadline=5.0)).acquire(f"user:{number}").degraded
        gc.collect()
        wait_until(lambda: len(admin.client_list()) == 1)


async def test_a_lost_script_on_what_became_a_replica_keeps_nobody_waiting(server: RedisServer) -> None:
    """What is sent again comes back as an error, too: of two calls, and of callers who share them."""
    cap = Rule("cap", limit=10, algorithm="concurrency", on_store_failure="deny")
    with RedisServer() as successor, server.client() as admin:
        limiter = Limiter([cap], RedisStore(server.url, deadline=0.5))
        assert (await limiter.aacquire("user:0")).allowed
        admin.replicaof("127.0.0.1", successor.port)
        admin.script_flush()
        async with asyncio.timeout(5):
            decisions = await asyncio.gather(*(limiter.aacquire(f"user:{number}") for number in range(1, 4)))
    assert all(decision.unavailable for decision in decisions)
