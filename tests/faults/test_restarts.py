"""A Redis that loads, that has lost its last writes, or that another one has taken the place of."""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.failures import Breaker
from testproject.check.standstill import elapsed
from tests.faults.conftest import BOUND
from tests.fleet import SYNC
from tests.proxy import Proxy
from tests.servers import RedisServer, slack, wait_until

LIMIT = 100
HUNDRED = Rule("hundred", f"{LIMIT}/366d", on_store_failure="allow")
SLOWLY = ("--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024")
Figure = Callable[..., None]
pytestmark = pytest.mark.usefixtures("servers")


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F14")
def test_while_it_loads_the_policy_decides(figure: Figure) -> None:
    with RedisServer() as server:
        with server.client() as client:
            if not client.config_get("loading-process-events-interval-bytes"):
                pytest.skip("before Redis 7.0 no option lets it be heard while it loads so little")
            client.eval("for i = 1, 8000 do redis.call('SET', 'other:' .. i, 1, 'EX', 600) end", 0)
        limiter, copy = Limiter([HUNDRED], RedisStore(server.url)), server.copy()
        store: Any = limiter.store
        server.options = SLOWLY
        starting = threading.Thread(target=server.restart_from, args=(copy,))
        starting.start()
        causes, slowest = set(), 0.0
        while starting.is_alive():
            began = time.monotonic()
            decision = limiter.acquire("user:1")
            slowest = max(slowest, elapsed(began))
            assert decision.allowed
            causes.add(decision.cause)
            store.breaker = Breaker()  # each call is to ask
        starting.join()
        figure("longest call", slowest * 1000, "ms")
        assert Cause.SERVER_STATE in causes
        assert slowest <= BOUND
        store.breaker = Breaker()
        assert wait_until(lambda: not limiter.acquire("user:1").degraded) <= slack(1.0)


@pytest.mark.row("F15")
def test_what_cannot_be_saved_is_not_written() -> None:
    with RedisServer() as server, server.client() as admin:
        limiter = Limiter([HUNDRED], RedisStore(server.url, deadline=5.0))
        store: Any = limiter.store
        assert not limiter.acquire("user:1").degraded
        admin.config_set("save", "3600 1")
        shutil.rmtree(server.folder)
        admin.bgsave()
        wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        decisions = [limiter.acquire("user:1") for _ in range(5)]
        assert [(each.allowed, each.cause) for each in decisions] == [(True, Cause.SERVER_STATE)] * 5
        assert store.breaker.is_open
        admin.config_set("stop-writes-on-bgsave-error", "no")
        wait_until(lambda: not limiter.acquire("user:1").degraded)


@pytest.mark.row("F32")
def test_what_a_failover_loses_passes_once_more(figure: Figure) -> None:
    """A replica takes over; the old primary goes on for a while, and what it counts then is lost with it."""
    with ExitStack() as stack:
        old = stack.enter_context(RedisServer(*SYNC))
        new = stack.enter_context(RedisServer(*SYNC, "--replicaof", "127.0.0.1", str(old.port)))
        proxy, primary, replica = map(stack.enter_context, (Proxy(old.port), old.client(), new.client()))
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        limiter = Limiter([HUNDRED], RedisStore(proxy.url, deadline=5.0))
        passed = sum(limiter.acquire("user:1").allowed for _ in range(40))
        assert primary.wait(1, 5000) == 1
        replica.replicaof("NO", "ONE")
        lost = sum(limiter.acquire("user:1").allowed for _ in range(30))
        old.kill()
        proxy.target = new.port
        wait_until(lambda: not limiter.peek("user:1").degraded)
        passed += sum(limiter.acquire("user:1").allowed for _ in range(2 * LIMIT))
    figure("passed of 100, what was lost included", passed + lost)
    assert (passed, lost) == (LIMIT, 30)
