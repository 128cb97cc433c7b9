"""A Redis store of this test's own, and a look past it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Charge
from django_throttle.core.decide import decide_charges
from django_throttle.core.io import run
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo, LoopIo
from tests.conftest import immortal_keys
from tests.crew import Crew
from tests.fleet import RedisCluster
from tests.proxy import Proxy
from tests.servers import RedisServer

RATES = [
    Rule("fixed", "10/h", algorithm="fixed_window"), Rule("sliding", "10/h"),
    Rule("sub-windows", "10/h", resolution=6, strict=True), Rule("gcra", "10/h", algorithm="gcra"),
    Rule("bucket", "10/h", algorithm="token_bucket", burst=7),
]  # fmt: skip


CAP = Rule("cap", limit=10, algorithm="concurrency")


@pytest.fixture
def proxy(redis_url: str, redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as between:
        yield between


@pytest.fixture
def server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as own:
        yield own


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return RedisStore(redis_url, deadline=5.0)  # this machine may be busy; nothing here is about deadlines


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as plain:
        yield plain


@pytest.fixture(params=["sync", "async"])
def acquire(request: pytest.FixtureRequest, store: RedisStore) -> Iterator[Callable[..., Any]]:
    """``acquire(*rules)``: one call of user:1 on either driver, all of them on one event loop."""
    if request.param == "sync":
        yield lambda *rules: Limiter(rules, store).acquire("user:1")
        return
    with asyncio.Runner() as runner:
        yield lambda *rules: runner.run(Limiter(rules, store).aacquire("user:1"))


def commands(client: Redis) -> dict[str, int]:
    stats: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}


def evaluations(client: Redis) -> int:
    stats = commands(client)
    return stats.get("evalsha", 0) + stats.get("eval", 0)


@pytest.fixture(scope="module")
def module_cluster(servers: None) -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster
        for node in cluster.nodes:
            with node.client() as client:
                assert "CROSSSLOT" not in str(client.info("errorstats"))


@pytest.fixture
def cluster(module_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """Empty and calm; afterwards nothing of ours may live for ever."""
    module_cluster.flush()
    yield module_cluster
    module_cluster.settle()
    assert [key for node in module_cluster.masters() for key in immortal_keys(node)] == []


@pytest.fixture(scope="module")
def crew(servers: None) -> Iterator[Crew]:
    workers = Crew(8)
    yield workers
    workers.close()


def decide(store: Any, on_loop: bool, *charges: Charge, lease: str | None = None, commit: bool = True) -> Decision:
    options: dict[str, Any] = {"commit": commit, "lease": lease}
    if on_loop:
        return asyncio.run(decide_charges(LoopIo(store), charges, **options))
    return run(decide_charges(BlockingIo(store), charges, **options))


def different_slots(store: RedisStore, count: int) -> list[str]:
    found = {key_slot(store.key("rule", ident).encode()): ident for ident in map("user:{}".format, range(3 * count))}
    return list(found.values())[:count]


def different_nodes(store: RedisStore, cluster: RedisCluster, count: int) -> list[str]:
    found = {cluster.owner(store.key("rule", ident)).port: ident for ident in map("user:{}".format, range(40))}
    return list(found.values())[:count]


def put_foreign(client: Redis, key: str, value: Any) -> None:
    """Put a value there that is not ours: text, a hash or a list."""
    client.delete(key)
    match value:
        case str():
            client.set(key, value, ex=60)
        case dict():
            client.hset(key, mapping=value)
        case list():
            client.rpush(key, *value)
