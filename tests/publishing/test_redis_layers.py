"""Publications on both layers of channels_redis, over two processes, while Redis is killed and started again.

The layer is on the Redis of the limits: one server, or the one that Sentinels name. It does not speak to a Cluster:
beside one it has servers of its own, among which it shares out groups and channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.fleet import READY, RedisCluster, Sentinels
from tests.servers import RedisServer, need_package, wait_until
from tests.sockets.worker import Worker

LAYERS = {"core": "channels_redis.core.RedisChannelLayer", "pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer"}
PUBLISH: dict[str, Any] = {"events": ["publish"], "key": "everyone"}
RULES = {
    "news": {**PUBLISH, "rate": "100000/h", "scopes": ["news"]},
    "crowd": {**PUBLISH, "rate": "1/h", "scopes": ["crowd"]},  # refuses all, and says how many are in the group
    "flood": {**PUBLISH, "rate": "20/s", "scopes": ["flood"], "algorithm": "damper"},
    "frames": {"rate": "10/s", "events": ["send"], "key": "connection", "algorithm": "fixed_window"},
}
SOCKETS = 2  # in each process
FLOOD = 60
QUIET = 1.2  # seconds without news after which none is on its way: who has missed frames is told within one


class Place(NamedTuple):
    """Where limits are, where the layer is, and how both crash and come back."""

    limits: str
    hosts: list[dict[str, Any]]
    crash: Callable[[], object]


def one_server(stack: ExitStack) -> Place:
    server = stack.enter_context(RedisServer())
    return Place(server.url, [{"address": server.url}], server.restart)


def sentinels(stack: ExitStack) -> Place:
    watched = stack.enter_context(Sentinels())

    def crash() -> None:
        old = watched.master()
        old.kill()
        wait_until(lambda: watched.master() is not old, timeout=READY)
        old.start()
        watched.settle()

    addresses = [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]
    return Place(watched.url, [{"sentinels": addresses, "master_name": "dt"}], crash)


def cluster(stack: ExitStack) -> Place:
    nodes = stack.enter_context(RedisCluster())
    shards = [stack.enter_context(RedisServer()) for _ in range(2)]

    def crash() -> None:
        for server in (*nodes.masters(), *shards):
            server.restart()
        nodes.settle()

    return Place(nodes.url, [{"address": shard.url} for shard in shards], crash)


@pytest.fixture(scope="module", params=[one_server, sentinels, cluster], ids=["server", "sentinel", "cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    need_package("channels_redis")
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(layer: str, place: Place) -> Iterator[list[Worker]]:
    """Two processes on this layer, without a socket."""
    config = {"hosts": [{**host, "socket_timeout": None} for host in place.hosts], "prefix": f"chat-{layer}"}
    layers = {"default": {"BACKEND": LAYERS[layer], "CONFIG": config}}
    workers = [Worker(REDIS=place.limits, RULES=RULES, CHANNEL_LAYERS=layers) for _ in range(2)]
    try:
        assert [worker.hear() for worker in workers] == ["ready", "ready"]
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def heard(pair: list[Worker]) -> list[int]:
    """How many messages each open socket has got or was told to have missed."""
    return [count for worker in pair for count in worker.ask("heard")]


def news(worker: Worker) -> bool:
    return bool(worker.ask("publish", publisher="user:1") == [True])


def is_well(pair: list[Worker]) -> None:
    """Everybody hears of each publication once, by whichever process; and the group is as large as it is."""
    whole = [False, 2 * SOCKETS]
    for worker in pair:
        wait_until(
            partial(lambda worker: worker.ask("publish", publisher="user:1", scope="crowd")[:2] == whole, worker)
        )
        before = heard(pair)
        assert len(before) == 2 * SOCKETS
        assert news(worker)
        wait_until(partial(lambda expected: heard(pair) == expected, [count + 1 for count in before]))


def recover(pair: list[Worker]) -> None:
    """Clients connect again, and news are sent until everybody has heard some and no more are on their way.

    Of the layer's connections of before the crash each fails once; and who only listens is told nothing of it.
    """
    open_all(pair)
    for worker in pair:
        before = heard(pair)

        def all_hear(worker: Worker = worker, before: list[int] = before) -> bool:
            return news(worker) and all(now > was for now, was in zip(heard(pair), before, strict=True))

        wait_until(all_hear, timeout=READY, every=0.2)
    seen = heard(pair)
    while (now := wait_for(QUIET, pair)) != seen:
        seen = now


def wait_for(seconds: float, pair: list[Worker]) -> list[int]:
    time.sleep(seconds)
    return heard(pair)


def dampens(pair: list[Worker]) -> None:
    """A flood over the damper's rate passes in part, and what passes is heard or told as missed, once each."""
    before = heard(pair)
    sent = sum(pair[0].ask("publish", publisher="user:1", scope="flood") == [True] for _ in range(FLOOD))
    assert 0 < sent < FLOOD
    wait_until(lambda: heard(pair) == [count + sent for count in before])
    assert any(worker.ask("missed") for worker in pair), "more than may be sent to a socket: continuity is lost"


def open_all(pair: list[Worker]) -> None:
    """Clients whose sockets have ended connect again, until each is let in."""
    for worker in pair:

        def complete(worker: Worker = worker) -> bool:
            lacking = SOCKETS - worker.ask("count")
            return not lacking or not any(worker.ask("open", user="1", times=lacking, scope="news"))

        wait_until(complete)


def test_publications_go_on_after_redis_was_killed(place: Place, layer: str, pair: list[Worker]) -> None:
    open_all(pair)
    is_well(pair)
    dampens(pair)
    place.crash()
    if layer == "core":
        wait_until(lambda: [worker.ask("count") for worker in pair] == [0, 0])
    else:
        assert [worker.ask("count") for worker in pair] == [SOCKETS, SOCKETS]
    recover(pair)
    is_well(pair)
    dampens(pair)
