"""Publications on both layers of channels_redis, over two processes, while Redis is killed and started again.

The layer is on the Redis of the limits: one server, or the one that Sentinels name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.fleet import READY, Sentinels
from tests.publishing.conftest import CORE, PUBSUB
from tests.servers import RedisServer, need_package, wait_until
from tests.sockets.worker import Worker, started

PUBLISH: dict[str, Any] = {"events": ["publish"], "key": "everyone"}
RULES = {
    "news": {**PUBLISH, "rate": "100000/h", "scopes": ["news"]},
    "crowd": {**PUBLISH, "rate": "1/h", "scopes": ["crowd"]},  # refuses all, and says how many are in the group
    "frames": {"rate": "10/s", "events": ["send"], "key": "connection", "algorithm": "fixed_window"},
}
SOCKETS = 2  # in each process


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


@pytest.fixture
def place(servers: None, request: pytest.FixtureRequest) -> Iterator[Place]:
    need_package("channels_redis")
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.fixture
def pair(layer: str, place: Place) -> Iterator[list[Worker]]:
    """Two processes on this layer, without a socket."""
    config = {"hosts": [{**host, "socket_timeout": None} for host in place.hosts]}
    layers = {"default": {"BACKEND": layer, "CONFIG": config}}
    with started(*(Worker(REDIS=place.limits, RULES=RULES, CHANNEL_LAYERS=layers) for _ in range(2))) as workers:
        yield workers


def each(pair: list[Worker], verb: str, **arguments: Any) -> list[int]:
    """An answer for each open socket of all processes."""
    return [count for worker in pair for count in worker.ask(verb, **arguments)]


def open_all(pair: list[Worker]) -> None:
    """Clients whose sockets have ended connect again, until each is let in."""

    def is_complete(worker: Worker) -> bool:
        lacking = SOCKETS - worker.ask("count")
        return not lacking or not any(worker.ask("open", user="1", times=lacking, scope="news"))

    for worker in pair:
        wait_until(partial(is_complete, worker))


def reaches_all(worker: Worker, pair: list[Worker]) -> bool:
    """Of the layer's connections of before a crash each fails once; and who only listens is told nothing of it."""
    text = f"x{secrets.token_hex(4)}"
    return worker.ask("publish", publisher="user:1", text=text) == [True] and all(each(pair, "heard", text=text))


def is_well(pair: list[Worker]) -> None:
    """Everybody hears of each publication once, by whichever process; and the group is as large as it is."""
    for worker in pair:
        wait_until(partial(reaches_all, worker, pair), timeout=READY, every=0.2)
        ask = partial(worker.ask, "publish", publisher="user:1", scope="crowd")
        wait_until(lambda ask=ask: ask()[:2] == [False, 2 * SOCKETS])
        text = f"x{secrets.token_hex(4)}"
        assert worker.ask("publish", publisher="user:1", text=text) == [True]
        wait_until(lambda text=text: each(pair, "heard", text=text) == [1] * 2 * SOCKETS)


@pytest.mark.parametrize(
    ("place", "layer"),
    [(one_server, CORE), (one_server, PUBSUB), (sentinels, PUBSUB)],
    ids=["server-core", "server-pubsub", "sentinel-pubsub"],
    indirect=["place"],
)
def test_publications_go_on_after_redis_was_killed(place: Place, layer: str, pair: list[Worker]) -> None:
    open_all(pair)
    is_well(pair)
    place.crash()
    if layer == CORE:
        wait_until(lambda: [worker.ask("count") for worker in pair] == [0, 0])
    else:
        assert [worker.ask("count") for worker in pair] == [SOCKETS, SOCKETS]
    open_all(pair)
    is_well(pair)
