"""A Redis that answers, but not with what was asked: each state has its cause, and none of them is a crash."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Decide, charge, charges_of
from django_throttle.core.decide import decide_charges
from django_throttle.core.io import run
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.refusal_cache import NoRefusalCache
from testproject.check.standstill import elapsed
from tests.faults.conftest import BOUND
from tests.servers import RedisServer, wait_until

COUNT = Rule("count", "1000/h", algorithm="gcra", on_store_failure="allow")
CAP = Rule("cap", limit=5, algorithm="concurrency", on_store_failure="allow")


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Redis]:
    with server.client() as client:
        yield client


def cause(store: RedisStore, rule: Rule = COUNT) -> Cause | None:
    try:
        store.execute(Decide(charges_of(rule, "user:1", 1)))
    except StoreError as error:
        return error.cause
    return None


def allowed_by_policy(store: RedisStore, rule: Rule = COUNT) -> bool:
    decision: Decision = run(decide_charges(BlockingIo(store), (charge(rule, "user:1", 1),)))
    return decision.allowed and decision.degraded


@pytest.mark.row("F33")
def test_a_replica_and_a_primary_with_too_few_of_them_do_not_count(server: RedisServer, admin: Redis) -> None:
    store = RedisStore(server.url, deadline=5.0)
    assert cause(store) is None
    admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert cause(store) is Cause.SERVER_STATE and allowed_by_policy(store)
    admin.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: cause(store) is None)
    admin.config_set("min-replicas-to-write", 1)
    assert cause(store) is Cause.SERVER_STATE and allowed_by_policy(store)


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu"])
def test_what_is_in_use_goes_last(policy: str, servers: None, figure: Any) -> None:
    """The clock of least recent use counts seconds: beside a cache that fills the memory in one, it tells nothing."""
    with RedisServer("--maxmemory", "3mb", "--maxmemory-policy", policy) as server, server.client() as client:
        store = RedisStore(server.url, deadline=5.0)
        store.refusal_cache = NoRefusalCache()  # every call is to reach Redis
        limiter, passed, evicted = Limiter([Rule("hot", "50/366d", algorithm="gcra")], store), 0, 0
        for number in range(100):
            with client.pipeline(transaction=False) as pipeline:
                for page in range(50):
                    pipeline.set(f"page:{number}:{page}", "x" * 1000, px=60_000)
                pipeline.execute()
            passed += limiter.acquire("user:1").allowed
        evicted = client.info("stats")["evicted_keys"]
    figure(f"passed of 50 beside a cache that fills the memory within a second, ``{policy}``,", passed)
    assert evicted > 1000
    assert passed == 50 or policy == "allkeys-lru"


@pytest.mark.row("F12")
def test_all_connections_of_the_server_are_taken(server: RedisServer, admin: Redis) -> None:
    admin.config_set("maxclients", 1)
    store = RedisStore(server.url, deadline=5.0)
    assert cause(store) is Cause.UNAVAILABLE and allowed_by_policy(store)
    admin.config_set("maxclients", 100)
    wait_until(lambda: cause(store) is None)


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.row("F13")
def test_somebody_else_s_script_keeps_it_busy(server: RedisServer, admin: Redis, figure: Any) -> None:
    store = RedisStore(server.url)
    wait_until(lambda: cause(store) is None)

    def hog() -> None:
        loop = "local t = redis.call('TIME')[1] repeat until redis.call('TIME')[1] - t >= 2"
        with server.client() as client, suppress(RedisError):
            client.eval(loop, 0)

    busy = threading.Thread(target=hog)
    busy.start()
    try:
        wait_until(lambda: cause(store) is not None)
        started = time.monotonic()
        assert allowed_by_policy(store)
        took = elapsed(started)
        figure("call meanwhile", took * 1000, "ms")
        assert took <= BOUND
    finally:
        with server.client() as killer:
            wait_until(lambda: killed(killer))
        busy.join()
    wait_until(lambda: cause(store) is None)


def killed(client: Redis) -> bool:
    try:
        client.script_kill()
    except RedisError as error:
        return "NOTBUSY" in str(error) or "No scripts in execution" in str(error)
    return True


class TestRights:
    """A user of Redis with too few rights is a mistake of ours: it is told, and no outage."""

    @pytest.fixture
    def url(self, server: RedisServer) -> str:
        return server.url.replace("//", "//app:word@")

    @pytest.mark.row("F18")
    @pytest.mark.parametrize(
        "rights",
        [
            ("~dt:*", "+@all", "-evalsha"), pytest.param(("~dt:*", "+@all", "-time"), marks=pytest.mark.row("F27")),
            ("~other:*", "+@all"), ("<word", ">another", "~dt:*", "+@all"),
        ],
        ids=["no scripts", "no clock", "no keys", "another password"],
    )  # fmt: skip
    def test_forbidden(self, rights: tuple[str, ...], url: str, admin: Redis) -> None:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">word", *rights)
        store = RedisStore(url, deadline=5.0)
        assert [cause(store) for _ in range(10)] == [Cause.CONFIG] * 10, "and so the breaker stays closed"
        assert allowed_by_policy(store)
        admin.execute_command("ACL", "SETUSER", "app", ">word", "~dt:*", "+@all")
        wait_until(lambda: cause(store) is None)

    @pytest.mark.row("F18")
    def test_the_log_is_not_flooded(self, url: str, admin: Redis, caplog: pytest.LogCaptureFixture) -> None:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">word", "~dt:*", "-@all")
        store = RedisStore(url, deadline=5.0)
        with caplog.at_level(logging.WARNING, "django_throttle"):
            for _ in range(50):
                assert allowed_by_policy(store)
        assert 1 <= len(caplog.records) <= 2
        assert "word" not in caplog.text, "a password"
