"""What happens around an outage or a reset is neither lost nor remembered for too long."""

from __future__ import annotations

import asyncio
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Lease, Rule
from django_throttle.core.commands import charges_of
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter, decide_flow
from django_throttle.stores import RedisStore
from django_throttle.stores.failures import Breaker
from tests.proxy import Proxy
from tests.servers import RedisServer, wait_until

RULE = Rule("rule", "1/hour")
CAP = Rule("cap", limit=1, algorithm="concurrency", on_store_failure="allow")


@pytest.fixture
def proxy(redis_url: str, redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as between:
        yield between


@pytest.fixture(params=["sync", "async"])
def release(request: pytest.FixtureRequest) -> Callable[[Limiter, Lease], None]:
    if request.param == "sync":
        return lambda limiter, lease: limiter.release(lease)
    return lambda limiter, lease: asyncio.run(limiter.arelease(lease))


def test_a_release_of_nothing_does_not_close_an_open_breaker(
    release: Callable[[Limiter, Lease], None], redis_url: str
) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    now = 0.0
    store.breaker = Breaker(clock=lambda: now)
    for _ in range(5):
        store.breaker.failed()
    now = 3600.0
    release(Limiter([CAP], store), Lease("never-taken", ((CAP.id, "user:1"),)))
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


@pytest.mark.parametrize("comes", ["before the reset's reply", "after it"])
def test_a_refusal_that_a_reset_met_on_its_way_is_forgotten(
    comes: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    limiter = Limiter([RULE], store)
    limiter.acquire("user:1")
    flow = decide_flow(charges_of(RULE, "user:1", 1), store)
    answers = store.execute(next(flow))
    send_all = store.transport.send_all

    def hear() -> None:
        with pytest.raises(StopIteration) as end:
            flow.send(answers)
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
    with Stranger(reply) as server:
        limiter = Limiter(rules, RedisStore(server.url, deadline=5.0))
        for decision in (limiter.acquire("user:1"), asyncio.run(both(limiter))):
            assert (decision.degraded, decision.unavailable, decision.cause) == (True, True, Cause.BUG)
    assert "Redis refuses a script" in caplog.text


async def both(limiter: Limiter) -> Decision:
    first, _ = await asyncio.gather(limiter.aacquire("user:1"), limiter.aacquire("user:2"))
    return first


class Stranger(socketserver.ThreadingTCPServer):
    """Speaks the protocol, but answers every script with the same text."""

    daemon_threads = True

    def __init__(self, reply: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Talk)
        self.reply = reply
        threading.Thread(target=self.serve_forever, daemon=True, args=(0.01,)).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


class Talk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while head := self.rfile.readline():
            parts = [self.rfile.read(int(self.rfile.readline()[1:]) + 2) for _ in range(int(head[1:]))]
            reply: Any = self.server.reply  # type: ignore[attr-defined]
            self.wfile.write(b"$%d\r\n%b\r\n" % (len(reply), reply) if parts[0].startswith(b"EVAL") else b"+OK\r\n")
