"""Connections keep deadlines however long they take to make, and come back from failures."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_throttle.core import Decision, Rule
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis import loop_connections, timeouts
from django_throttle.stores.redis import pool as pool_module
from django_throttle.stores.redis.addresses import find_address
from django_throttle.stores.redis.clients import sync_client
from django_throttle.stores.redis.failures import Breaker, cause_of
from django_throttle.stores.redis.pool import Pool, pack
from django_throttle.stores.redis.timeouts import MIN_ROUND_TRIP_SECONDS, Deadline, bounded, one_deadline, seconds_for
from tests.inside import unsaid
from tests.proxy import Proxy
from tests.servers import RedisServer, slack, wait_until

DEADLINE = 0.1
RATE = Rule("rate", "1000/hour")
CAP = Rule("cap", limit=1000, algorithm="concurrency")


def ask(line: Pool, *parts: Any) -> Any:
    return line.call(pack(parts), time.monotonic() + 5.0)


async def connected(store: RedisStore, rule: Rule) -> Limiter:
    """A limiter whose store is connected and knows its script, however long that takes."""
    limiter = Limiter([rule], store)
    store.transport.seconds = 5.0
    assert not (await limiter.apeek("user:1")).degraded
    store.transport.seconds = DEADLINE
    return limiter


async def call_and_block(store: RedisStore, rule: Rule, proxy: Proxy | None = None) -> Decision:
    """A call on a loop that is busy for longer than the deadline; with a proxy, the reply comes later still."""
    limiter = await connected(store, rule)
    if proxy:
        proxy.set("delay", 4 * DEADLINE)
    task = asyncio.create_task(limiter.aacquire("user:1"))
    for _ in range(3):
        await asyncio.sleep(0)
    time.sleep(1.5 * DEADLINE)  # noqa: ASYNC251 (what applications should not do, and do)
    store.transport.seconds = 5.0  # should it be asked again
    if proxy:
        proxy.set("pass")
    return await task


async def test_a_reply_that_came_while_the_loop_was_blocked_is_read(redis_url: str, caplog: Any) -> None:
    store = RedisStore(redis_url)
    decisions = [await call_and_block(store, RATE) for _ in range(3)]
    assert [(decision.degraded, decision.remaining) for decision in decisions] == [(False, 999 - n) for n in range(3)]
    assert caplog.text == ""


async def test_a_blocked_loop_does_not_open_the_breaker(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    store = RedisStore(proxy.url)
    decisions = [await call_and_block(store, RATE, proxy) for _ in range(6)]
    assert all(decision.degraded for decision in decisions), "else nothing was tested"
    assert not store.breaker.is_failing
    assert "blocks the event loop" in caplog.text
    assert await connected(store, RATE)


async def test_a_lease_that_a_blocked_loop_has_missed_is_asked_for_again(proxy: Proxy) -> None:
    store = RedisStore(proxy.url)
    decisions = [await call_and_block(store, CAP, proxy) for _ in range(6)]
    assert not any(decision.degraded for decision in decisions)
    limiter = await connected(store, CAP)
    assert (await limiter.apeek("user:1")).remaining == 994, "and is held once"
    assert len(store.leases) == 6
    assert not store.breaker.is_failing


RULE = Rule("api", "1000/hour", on_store_failure="allow")
BRIEF = 0.4  # for connecting
PATIENCE = 20.0


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_server_several_round_trips_away_is_used(
    is_async: bool, redis_server: RedisServer, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes most of the deadline: a connection that was begun anew for each caller would never be ready."""
    unsaid(timeouts, monkeypatch)
    assert not Limiter([RULE], RedisStore(redis_server.url, deadline=PATIENCE)).acquire("user:1").degraded  # the script
    with Proxy(redis_server.port, "delay", 0.6 * BRIEF) as proxy, caplog.at_level(logging.WARNING):
        limiter = Limiter([RULE], RedisStore(f"{proxy.url}?client_name=far", deadline=BRIEF))
        acquire = limiter.aacquire if is_async else sync_to_async(limiter.acquire)
        assert (await acquire("user:1")).degraded
        async with asyncio.timeout(slack(PATIENCE)):
            accepted = 0
            while (await acquire("user:1")).degraded:
                if "connecting to Redis took" not in caplog.text:
                    accepted = proxy.accepted  # later ones replace a connection whose reply was late
                await asyncio.sleep(0.02)
        assert accepted <= 2, "one connection, that all have waited for"
    line, *_ = [record.message for record in caplog.records if record.message.startswith("connecting to Redis took")]
    assert "longer than DEADLINE (400 ms)" in line


FIXED = Rule("rule", "1000/hour", algorithm="fixed_window", timezone="UTC")


def test_a_long_hang_uses_no_connection_up(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", -1.0)  # as if every probe came after a long pause
    store = RedisStore(server.url, deadline=5.0, max_connections=2)
    limiter = Limiter([replace(FIXED, on_store_failure="allow")], store)
    assert limiter.acquire("user:1").remaining == 999
    store.transport.seconds = 0.05
    server.pause()
    try:
        for _ in range(8):
            store.breaker = Breaker()  # which holds no call back
            assert limiter.acquire("user:1").degraded
    finally:
        server.resume()
    before = Limiter([FIXED], RedisStore(server.url, deadline=5.0)).peek("user:1").remaining
    store.breaker, store.transport.seconds = Breaker(), 5.0
    with ThreadPoolExecutor(2) as threads:
        decisions = list(threads.map(limiter.acquire, ["user:1"] * 3))
    assert before is not None and not any(decision.degraded for decision in decisions)
    assert {decision.remaining for decision in decisions} == {before - 1, before - 2, before - 3}


def test_a_rested_connection_that_the_server_has_closed_is_noticed(proxy: Proxy, monkeypatch: Any) -> None:
    for module in (pool_module, loop_connections):
        monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)  # as if every call came after a long rest
    limiter = Limiter([FIXED], RedisStore(proxy.url, deadline=5.0))
    with asyncio.Runner() as runner:
        for left in (999, 997):
            assert limiter.acquire("user:1").remaining == left
            assert runner.run(limiter.aacquire("user:1")).remaining == left - 1
            proxy.cut()
            wait_until(lambda: proxy.open_links == 0)


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


@pytest.mark.row("F11")
def test_waiting_ends_with_the_error_of_a_pool(pool: Callable[..., Pool]) -> None:
    line = pool(1, 0.01)
    held = line.post([pack(("CLIENT", "ID"))])
    with pytest.raises(RedisConnectionError, match="Too many connections") as caught:
        ask(line, "PING")
    assert cause_of(caught.value) is Cause.POOL
    line.close_idle()
    assert line.collect(held, 1) != [ask(line, "CLIENT", "ID")], "the server is another now"


def test_after_its_deadline_nothing_is_sent_and_what_has_arrived_is_read(pool: Callable[..., Pool]) -> None:
    line = pool(1)
    with Deadline(-1.0), pytest.raises(RedisTimeoutError):
        line.post([pack(("PING",))])
    held = line.post([pack(("ECHO", "there"))])
    wait_until(lambda: held.can_read(0))
    with Deadline(-1.0):
        assert line.collect(held, 1) == [b"there"]
    with pytest.raises(RedisTimeoutError):
        line.call(pack(("PING",)), time.monotonic() - 1.0)
    assert ask(line, "ECHO", "again") == b"again"


def test_commands_of_one_decision_share_its_deadline() -> None:
    with one_deadline():
        assert 400.0 < seconds_for(None, 500.0) < 500.0
        assert (seconds_for(5.0, 500.0), seconds_for(5.0, 0.0)) == (5.0, MIN_ROUND_TRIP_SECONDS)
    assert (seconds_for(None, 500.0), seconds_for(5.0, 500.0)) == (500.0, 5.0)


def test_a_busy_pool_serves_callers_in_the_order_of_arrival(pool: Callable[..., Pool]) -> None:
    line = pool(1, slack(5.0))
    with Deadline(slack(5.0)):
        held = line.post([pack(("PING",))])
        with ThreadPoolExecutor(2) as threads:
            for number in (1, 2):
                threads.submit(ask, line, "RPUSH", "arrivals", number)
                wait_until(lambda number=number: line._waiting == number)
            line.collect(held, 1)
            ask(line, "RPUSH", "arrivals", 3)
        assert ask(line, "LRANGE", "arrivals", 0, -1) == [b"1", b"2", b"3"]
        ask(line, "DEL", "arrivals")


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


def test_who_drops_a_store_has_its_connections_closed(server: RedisServer) -> None:
    """A store is part of a cycle, so it is the garbage collector that ends it, in no order."""
    rule = Rule("api", "5/min", on_store_failure="allow")  # needs no thread, which would keep the store
    with server.client() as admin:
        for number in range(20):
            assert not Limiter([rule], RedisStore(server.url, deadline=5.0)).acquire(f"user:{number}").degraded
        gc.collect()
        wait_until(lambda: len(admin.client_list()) == 1)


class Provider(CredentialProvider):
    """Answers once the gate is open; raises a string."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.gate = list(answers), threading.Event()

    def get_credentials(self) -> Any:
        self.gate.wait(10)
        if isinstance(answer := self.answers.pop(0), str):
            raise LookupError(answer)
        return answer


def test_credentials_take_no_longer_than_the_call_and_are_there_for_the_next() -> None:
    provider = Provider(("site", "first"), ("site", "second"), "no vault", ("site", "last"))
    found = bounded(provider)
    with Deadline(0.001), pytest.raises(RedisTimeoutError, match="provider took longer than DEADLINE"):
        found.get_credentials()
    (asking,) = [thread for thread in threading.enumerate() if thread.name == "django_throttle.credentials"]
    assert asking.daemon, "the process may end meanwhile"
    provider.gate.set()
    asking.join()
    assert [found.get_credentials(), asyncio.run(found.get_credentials_async())] == [
        ("site", "first"),
        ("site", "second"),
    ]
    with pytest.raises(RedisConnectionError, match="the credential provider raised LookupError: no vault"):
        found.get_credentials()
    assert found.get_credentials() == ("site", "last")
    fixed = UsernamePasswordCredentialProvider("site", "fixed")
    assert bounded(fixed) is fixed and bounded(found) is found
