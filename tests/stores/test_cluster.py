"""A Redis Cluster: exact within a slot, all or nothing across slots, right while slots move and masters fail."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.crc import key_slot

from django_throttle.core import Rule
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.cluster import SlotMap
from testproject.check.standstill import elapsed
from tests.cases import CASES, Case
from tests.clock import FrozenClock
from tests.failover import DEADLINE, LOAD, calling, errors_since
from tests.fleet import NODE_TIMEOUT, READY, RedisCluster
from tests.play import aplay, play
from tests.servers import RedisServer, slack, wait_until
from tests.stores.conftest import different_nodes, different_slots


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", CASES[1::4], ids=lambda case: case.name)
def test_the_table_of_cases(case: Case, on_loop: bool, cluster: RedisCluster, clock: FrozenClock) -> None:
    limiter = Limiter(case.rules, RedisStore(cluster.url, clock=clock, deadline=5.0))
    asyncio.run(aplay(case, limiter, clock)) if on_loop else play(case, limiter, clock)


@pytest.mark.row("F37")
@pytest.mark.usefixtures("stopwatch")
def test_while_a_slot_moves(cluster: RedisCluster) -> None:
    """New keys are written where the slot goes; rules of which half have gone wait, then the policy decides."""
    store = RedisStore(cluster.url, deadline=5.0)
    rules = [Rule(name, "10/h", algorithm=name, on_store_failure="allow") for name in ("gcra", "sliding_log")]
    first, second = (Limiter([rule], store) for rule in rules)
    key = store.counter_key(rules[0], "user:1")
    source, slot = cluster.owner(key), key_slot(key.encode())
    target = next(node for node in cluster.masters() if node is not source)
    assert first.acquire("user:1").remaining == 9
    for node, state, other in ((target, "IMPORTING", source), (source, "MIGRATING", target)):
        with node.client() as client:
            client.execute_command("CLUSTER", "SETSLOT", slot, state, cluster.name_of(other))
    try:
        assert first.acquire("user:1").remaining == 8  # still there
        assert second.acquire("user:1").remaining == 9  # there already
        assert asyncio.run(second.aacquire("user:1")).remaining == 8
        both = Limiter(rules, store)
        store.transport.seconds = DEADLINE
        for call in (lambda: both.acquire("user:1"), lambda: asyncio.run(both.aacquire("user:1"))):
            started = time.monotonic()
            assert call().degraded
            assert elapsed(started) < slack(DEADLINE + 0.05)
    finally:
        store.transport.seconds = 5.0
        with source.client() as client:
            client.migrate("127.0.0.1", target.port, key, 0, 5000)
        for node in (target, source):
            with node.client() as client:
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.name_of(target))
    assert not both.acquire("user:1").degraded


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F36")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=lambda blow: blow.name)
def test_after_a_failover_decisions_resume(
    blow: signal.Signals, cluster: RedisCluster, caplog: pytest.LogCaptureFixture, figure: Callable[..., None]
) -> None:
    key = RedisStore(cluster.url).key(LOAD.id, "user:1")
    old = cluster.owner(key)
    try:
        with calling(cluster.url, "user:1") as callers:
            wait_until(lambda: all(caller.shared() >= 10 for caller in callers))
            before = sum(caller.shared() for caller in callers)
            struck = time.monotonic()
            os.kill(old.pid, blow)
            wait_until(lambda: all(caller.is_back(struck) for caller in callers), timeout=READY)
            again = sum(caller.shared() for caller in callers)
            wait_until(lambda: sum(caller.shared() for caller in callers) >= again + 20)
    finally:
        old.resume() if blow is signal.SIGSTOP else old.restart()
    for caller in callers:
        outage, slowest = caller.outage(struck), caller.slowest()
        figure(f"{blow.name}: decides again after", outage, "s")
        figure("longest call", slowest * 1000, "ms")
        assert 0 < outage < slack(NODE_TIMEOUT + 2.0)
        assert slowest < slack(DEADLINE + 0.05)
    stands = Limiter([LOAD], RedisStore(cluster.url, deadline=5.0)).peek("user:1")
    assert 1_000_000 - (stands.remaining or 0) >= before  # what was replicated still counts
    assert errors_since(struck, caplog.records) == []


@pytest.mark.usefixtures("servers", "stopwatch")
@pytest.mark.row("F38")
@pytest.mark.parametrize("coverage", ["no", "yes"])
def test_a_slot_that_nobody_serves_is_left_to_the_policy(coverage: str, figure: Callable[..., None]) -> None:
    causes = {"no": Cause.UNAVAILABLE, "yes": Cause.SERVER_STATE}
    with RedisCluster(0, "--cluster-require-full-coverage", coverage) as cluster:
        patience = 1.0  # what is well must not fail because the machine is busy
        store = RedisStore(cluster.url, deadline=patience)
        limiter = Limiter([LOAD], store)
        idents = different_nodes(store, cluster, 3)
        assert not any(limiter.acquire(ident).degraded for ident in idents)
        cluster.owner(store.key(LOAD.id, idents[0])).kill()
        until, slowest = time.monotonic() + NODE_TIMEOUT + 1.0, 0.0
        while time.monotonic() < until:
            for ident in idents:
                started = time.monotonic()
                decisions = limiter.acquire(ident), asyncio.run(limiter.aacquire(ident))
                slowest = max(slowest, elapsed(started) / 2)
                if ident == idents[0] or coverage == "no":
                    assert {decision.degraded for decision in decisions} == {ident == idents[0]}
        figure("longest call, with a deadline of 1 s", slowest * 1000, "ms")
        assert slowest < slack(patience + 0.05)
        wait_until(lambda: cause(cluster, idents[0 if coverage == "no" else 1]) is causes[coverage], every=0.1)


def cause(cluster: RedisCluster, ident: str) -> Cause | None:
    """Why nobody serves an ident's slot; None when somebody does."""
    store = RedisStore(cluster.url)
    try:
        store.call("forget", [store.counter_key(LOAD, ident)], ("", ""))
    except StoreError as error:
        return error.cause
    return None


@pytest.mark.row("F38")
class TestWrongAddress:
    def test_a_plain_url_of_a_cluster_says_so(self, cluster: RedisCluster, caplog: pytest.LogCaptureFixture) -> None:
        idents = different_slots(RedisStore(cluster.url), 10)
        for node in cluster.masters():
            store = RedisStore(node.url, deadline=5.0)
            limiter = Limiter([LOAD], store)
            for ident in idents:
                limiter.acquire(ident)
        assert "part of a Redis Cluster: name it by a redis+cluster:// URL" in caplog.text
        with pytest.raises(StoreError) as raised:
            _ = [store.call("forget", [store.key("rule", ident)], ("", "")) for ident in idents]
        assert raised.value.cause is Cause.CONFIG

    def test_a_cluster_url_of_a_single_server_says_so(self, redis_server: RedisServer) -> None:
        store = RedisStore(f"redis+cluster://127.0.0.1:{redis_server.port}", deadline=5.0)
        with pytest.raises(StoreError, match="no Redis Cluster: name it by a redis://") as raised:
            store.call("forget", ["dt:{a}:b"], ("", ""))
        assert raised.value.cause is Cause.CONFIG


SEED, OTHER = ("10.0.0.1", 7000), ("10.0.0.2", 7001)


def node(host: str, port: int) -> list[Any]:
    return [host.encode(), port, b"id"]


def test_each_slot_is_asked_of_the_first_node_that_serves_it() -> None:
    slots = SlotMap([SEED])
    slots.learn([[0, 99, node(*SEED), node("10.0.0.9", 7009)], [100, 16383, node(*OTHER)]], SEED)
    assert [slots.owner(slot) for slot in (0, 99, 100, 16383)] == [SEED, SEED, OTHER, OTHER]
    slots.move(99, OTHER)
    assert [slots.owner(slot) for slot in (98, 99)] == [SEED, OTHER]


def test_a_node_without_an_address_is_the_one_that_was_asked() -> None:
    slots = SlotMap([SEED])
    for host in (b"", "", None):  # NULL: a node that does not know under which name it is reached
        slots.learn([[0, 16383, [host, *node("", 7000)[1:]]]], SEED)
        assert slots.owner(5) == SEED
