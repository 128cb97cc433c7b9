"""Redis comes back with an old copy of its data: what was closed since then is not open, what is open counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.connections.conftest import MakeWorker, Refresh, Site
from tests.connections.worker import RULE
from tests.servers import RedisServer, wait_until

CLOSED = 300
BEATS = {"BEAT_INTERVAL": 0.5, "PROCESS_TTL": 4.0}


@pytest.fixture
def site(server: RedisServer, quick: None) -> Site:
    return Site(server.url)


def held(site: Site, redis: Redis, kind: str, times: int = CLOSED) -> int:
    """The slots of so many users, as a decision counts them: the sum over the owners that their index names."""
    names = [site.store.key(RULE.id, f"{kind}:{number}") for number in range(times)]
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.smembers(name)
        owners = pipeline.execute()
        for name, uids in zip(names, owners, strict=True):
            for uid in uids:
                pipeline.zcard(f"{name}:{uid}")
        return int(sum(pipeline.execute()))


@pytest.mark.row("F23")
@pytest.mark.parametrize("refreshed", [False, True], ids=["alone", "with the command"])
def test_what_was_closed_since_is_gone(
    refreshed: bool,
    server: RedisServer,
    site: Site,
    make_worker: MakeWorker,
    refreshing: Refresh,
    figure: Callable[..., None],
) -> None:
    """Long ago, so that even the announcements were taken back; what is open is open all the time."""
    workers = [make_worker(REDIS=server.url, **BEATS) for _ in range(2)]
    if refreshed:
        refreshing("--interval", "0.2", url=server.url)
    with server.client() as redis:
        for number, worker in enumerate(workers):
            worker.ask("acquire_each", f"stay{number}", 10)
            worker.ask("acquire_each", f"gone{number}", CLOSED)
        ended = make_worker(REDIS=server.url, **BEATS)
        ended.ask("acquire_each", "ended", 50)
        # Asked now: of what comes back the command frees some before anybody can look.
        assert (held(site, redis, "gone0"), held(site, redis, "ended")) == (CLOSED, 50)
        copy = server.copy()
        ended.leave()
        for worker in workers:
            worker.ask("release", CLOSED)
            worker.ask("acquire", "late:0", 2)
        named = [f"dt:{{p}}:held:{worker.ask('uid')}" for worker in workers]
        wait_until(lambda: [redis.scard(key) for key in named] == [11, 11], timeout=30)
        assert held(site, redis, "gone0") == 0
        server.restart_from(copy)

        staying = [f"stay{number}:{user}" for number in range(2) for user in range(10)]

        def is_right() -> bool:
            assert [site.count(ident) for ident in staying] == [1] * 20, "what is open counts all the time"
            gone = held(site, redis, "gone0") + held(site, redis, "gone1") + held(site, redis, "ended")
            return gone == 0 and held(site, redis, "late", 1) == 4

        took = wait_until(is_right, timeout=60)
        figure("650 closed slots of an old copy were gone after, with beats of 0.5 s,", took, "s")
