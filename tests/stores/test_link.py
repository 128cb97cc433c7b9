"""The way to Redis keeps its deadline and its cancellations, and does not blame Redis for a loop that stood still."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError

from django_throttle.core import Decision, Rule
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.clients import sync_client
from django_throttle.stores.deadline import Within
from django_throttle.stores.failures import LoopBlocked, cause_of
from django_throttle.stores.link import heed_cancellation
from tests.servers import slack

DEADLINE = 0.1
RATE = Rule("rate", "1000/hour")
CAP = Rule("cap", limit=1000, algorithm="concurrency")


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where nobody takes connections, and the system takes no more of them."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port, waiting = listener.getsockname()[1], []
        try:
            for _ in range(3):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for one in waiting:
                one.close()


async def call_and_block(limiter: Limiter) -> Decision:
    """A call whose reply comes in time, to a loop that is busy for longer than the deadline."""
    task = asyncio.create_task(limiter.aacquire("user:1"))
    for _ in range(3):
        await asyncio.sleep(0)
    time.sleep(1.5 * DEADLINE)  # noqa: ASYNC251 (what applications should not do, and do)
    return await task


async def test_a_blocked_loop_does_not_open_the_breaker(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = RedisStore(redis_url, deadline=DEADLINE)
    limiter = Limiter([RATE], store)
    await limiter.aacquire("user:1")
    decisions = [await call_and_block(limiter) for _ in range(6)]
    assert all(decision.degraded for decision in decisions), "else nothing was tested"
    assert not store.breaker.is_failing
    assert "blocks the event loop" in caplog.text
    assert not (await limiter.aacquire("user:1")).degraded


async def test_a_lease_that_a_blocked_loop_has_missed_is_asked_for_again(redis_url: str) -> None:
    store = RedisStore(redis_url, deadline=DEADLINE)
    limiter = Limiter([CAP], store)
    await limiter.aacquire("user:1")
    decisions = [await call_and_block(limiter) for _ in range(6)]
    assert not any(decision.degraded for decision in decisions)
    assert (await limiter.apeek("user:1")).remaining == 993, "and is held once"
    assert len(store.leases) == 7
    assert not store.breaker.is_failing


def test_a_late_loop_is_no_unavailable_store() -> None:
    assert cause_of(LoopBlocked("late")) is Cause.BLOCKED
    assert cause_of(TimeoutError("late")) is Cause.UNAVAILABLE


async def swallow() -> str:
    """As asyncio.wait_for did until Python 3.12, when a cancellation came as it was done."""
    with heed_cancellation():
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "swallowed"
    return "slept"


async def test_a_swallowed_cancellation_is_raised_all_the_same() -> None:
    task = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_that_was_swallowed_is_still_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await swallow()


def test_a_deadline_bounds_connecting(deaf: int) -> None:
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": deaf}
    client = sync_client(settings, 5.0, 1)
    started = time.monotonic()
    with pytest.raises((RedisError, OSError)), Within(DEADLINE):
        client.ping()
    assert time.monotonic() - started < slack(2 * DEADLINE)


def test_and_connecting_late(deaf: int) -> None:
    """Most of the deadline has gone on something else: what is left is all that connecting gets."""
    client = sync_client({"host": "127.0.0.1", "port": deaf}, DEADLINE, 1)
    started = time.monotonic()
    with Within(DEADLINE):
        time.sleep(0.8 * DEADLINE)
        with pytest.raises((RedisError, OSError)):
            client.ping()
    assert time.monotonic() - started < 1.5 * DEADLINE
