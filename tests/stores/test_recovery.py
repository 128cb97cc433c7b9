"""What happens around an outage, a reset, or a crowd that leaves is neither lost nor remembered for too long."""

from __future__ import annotations

import asyncio
import re
import socketserver
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Lease, Rule
from django_throttle.core.commands import Release, charges_of
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter, decide_fully
from django_throttle.stores import RedisStore
from django_throttle.stores.failures import Breaker
from testproject.check.standstill import elapsed
from tests.proxy import Proxy
from tests.servers import wait_until
from tests.sockets.guarded import becomes

RULE = Rule("rule", "1/hour")
CAP = Rule("cap", limit=1, algorithm="concurrency", on_store_failure="allow")


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_release_of_nothing_does_not_close_an_open_breaker(on_loop: bool, redis_url: str) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    now = 0.0
    store.breaker = Breaker(clock=lambda: now)
    for _ in range(5):
        store.breaker.failed()
    now = 3600.0
    limiter, nothing = Limiter([CAP], store), Lease("never-taken", ((CAP.id, "user:1"),))
    asyncio.run(limiter.arelease(nothing)) if on_loop else limiter.release(nothing)
    assert store.breaker.is_open
    assert store.breaker.admit() == 0.0, "it was not the probe either"


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


class Paused(NamedTuple):
    """An ``io`` whose commands are executed by whoever drives the coroutine."""

    store: RedisStore

    @types.coroutine
    def execute(self, command: Any) -> Any:
        return (yield command)


@pytest.mark.parametrize("comes", ["before the reset's reply", "after it"])
def test_a_refusal_that_a_reset_met_on_its_way_is_forgotten(
    comes: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    limiter = Limiter([RULE], store)
    limiter.acquire("user:1")
    work = decide_fully(Paused(store), charges_of(RULE, "user:1", 1))  # type: ignore[arg-type]
    answers = store.execute(work.send(None))
    send_all = store.transport.send_all

    def hear() -> None:
        with pytest.raises(StopIteration) as end:
            work.send(answers)
        assert not end.value.value.allowed

    def send(calls: Any, *rest: Any) -> Any:
        monkeypatch.setattr(store.transport, "send_all", send_all)
        replies = send_all(calls, *rest)
        hear()
        return replies

    if comes == "after it":
        limiter.reset("user:1")
        hear()
    else:
        monkeypatch.setattr(store.transport, "send_all", send)
        limiter.reset("user:1")
    assert limiter.acquire("user:1").allowed


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


def test_threads_of_one_stall_are_one_failure(proxy: Proxy) -> None:
    """And five stalls open the breaker."""
    store: Any = RedisStore(proxy.url, deadline=0.2)
    limiter = Limiter([Rule("rate", "1000/hour")], store)
    assert not limiter.acquire("user:1").degraded
    proxy.set("dead")
    with ThreadPoolExecutor(10) as threads:
        assert all(decision.degraded for decision in threads.map(limiter.acquire, ["user:1"] * 10))
    for _ in range(4):
        assert store.breaker.is_failing and not store.breaker.is_open
        limiter.acquire("user:1")
    assert store.breaker.is_open


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("reply", [b"", b"\0" * 40, b"\0" * 5], ids=len)
def test_a_reply_of_another_length_is_a_failure_like_any_other(reply: bytes, caplog: pytest.LogCaptureFixture) -> None:
    rules = [Rule("one", "5/hour"), Rule("two", "5/hour", on_store_failure="deny")]
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), partial(Stranger, reply)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True, args=(0.01,)).start()
        limiter = Limiter(rules, RedisStore(f"redis://127.0.0.1:{server.server_address[1]}/0", deadline=5.0))
        for decision in (limiter.acquire("user:1"), asyncio.run(both(limiter))):
            assert (decision.degraded, decision.unavailable, decision.cause) == (True, True, Cause.BUG)
        server.shutdown()
    assert "Redis refuses a script" in caplog.text


async def both(limiter: Limiter) -> Decision:
    first, _ = await asyncio.gather(limiter.aacquire("user:1"), limiter.aacquire("user:2"))
    return first


class Stranger(socketserver.StreamRequestHandler):
    """Speaks the protocol, but answers every script with the same text."""

    def __init__(self, reply: bytes, *args: Any) -> None:
        self.answer = b"$%d\r\n%b\r\n" % (len(reply), reply)
        super().__init__(*args)

    def handle(self) -> None:
        while head := self.rfile.readline():
            parts = [self.rfile.read(int(self.rfile.readline()[1:]) + 2) for _ in range(int(head[1:]))]
            self.wfile.write(self.answer if parts[0].startswith(b"EVAL") else b"+OK\r\n")


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
