"""Redis comes back with an old copy of its data: what was closed since then is not open, what is open counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from django_throttle.exceptions import StoreError
from tests.connections.conftest import QUICK, Site, Worker
from tests.connections.test_processes import Refreshing
from tests.connections.worker import RULE
from tests.fleet import RedisCluster
from tests.servers import RedisServer, slack, wait_until

MakeWorker = Callable[..., Worker]
CLOSED = int(os.environ.get("CLOSED", "1500"))  # 100,000 take minutes; see docs/deployment.rst
TWO_BEATS = 2 * QUICK["BEAT_INTERVAL"]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def site(server: RedisServer, quick: None) -> Site:
    return Site(server.url)


def held(site: Site, redis: Redis, kind: str, times: int) -> int:
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


def slowest(site: Site, happened: Callable[[], object], timeout: float) -> tuple[float, float]:
    """Wait for it, and decide meanwhile: the seconds that it took, and the longest decision."""
    longest, started = 0.0, time.monotonic()
    while not happened():
        for number in range(20):
            began = time.perf_counter()
            site.limiter.peek(f"other:{number}")
            longest = max(longest, time.perf_counter() - began)
        assert time.monotonic() - started < timeout
    return time.monotonic() - started, longest


@pytest.mark.parametrize("refreshed", [False, True], ids=["alone", "with the command"])
def test_what_was_closed_since_is_gone_within_two_beats(
    refreshed: bool, server: RedisServer, site: Site, make_worker: MakeWorker
) -> None:
    """Long ago, so that even the announcements were taken back; what is open is open all the time."""
    workers = [make_worker(REDIS=server.url) for _ in range(2)]
    command = Refreshing(server.url, "--interval", "0.2") if refreshed else None
    with server.client() as redis:
        try:
            for number, worker in enumerate(workers):
                worker.ask("acquire_each", f"stay{number}", 50)
                worker.ask("acquire_each", f"gone{number}", CLOSED // 2)
            copy = server.copy()
            for worker in workers:
                worker.ask("release", CLOSED // 2)
                worker.ask("acquire", "late:0", 2)
            time.sleep(6 * QUICK["BEAT_INTERVAL"])
            assert held(site, redis, "gone0", CLOSED // 2) == 0
            server.restart_from(copy)

            lowest = [20]

            def is_right() -> bool:
                stay = [f"stay{worker}:{number}" for worker in range(2) for number in range(0, 50, 5)]
                lowest.append(sum(map(site.count, stay)))
                if redis.dbsize() > CLOSED:  # two keys each: not worth looking at all of them
                    return False
                gone = held(site, redis, "gone0", CLOSED // 2) + held(site, redis, "gone1", CLOSED // 2)
                return gone == 0 and held(site, redis, "late", 1) == 4

            assert held(site, redis, "gone0", CLOSED // 2) == CLOSED // 2
            took, longest = slowest(site, is_right, slack(60 if CLOSED < 10_000 else 300))
            print(
                f"{CLOSED} closed slots came back, {took:.2f} s until none was left, with a beat of "
                f"{QUICK['BEAT_INTERVAL']} s; the longest decision meanwhile {longest * 1000:.0f} ms"
            )
            assert took < slack(TWO_BEATS)
            assert min(lowest) == 20, "what is open counts all the time"
        finally:
            if command:
                command.process.kill()
                command.process.wait()
                command.stdout.close()


def test_a_copy_that_knows_another_uid_of_the_process_or_none(server: RedisServer, quick: None) -> None:
    former, later = Site(server.url), Site(server.url)
    leases = [decision.lease for decision in former.take("user:1", 3)]
    former.beat()
    copy = server.copy()
    with server.client() as redis:
        redis.flushall()
    former.beat()
    later.take("user:1", 2)
    for lease in leases[1:]:
        former.limiter.release(lease)
    uid = former.leases.uid
    server.restart_from(copy)
    for site in (former, later):
        wait_until(lambda site=site: _settles(site), timeout=slack(10))  # type: ignore[misc]
    assert former.leases.uid != uid
    assert former.count("user:1") == 3
    with server.client() as redis:
        assert set(redis.zrange("dt:{p}:live", 0, -1)) == {former.leases.uid, later.leases.uid}


def test_a_copy_from_between_a_loss_and_the_next_beat(server: RedisServer, quick: None) -> None:
    """What was taken then is named nowhere: the process believes that Redis knows where it holds leases."""
    site = Site(server.url)
    for decision in site.take("user:1", 3):
        site.limiter.release(decision.lease)
    site.beat()
    server.restart()
    wait_until(lambda: not site.limiter.peek("user:1").degraded)
    leases = [decision.lease for decision in site.take("user:1", 3)]
    copy = server.copy()
    wait_until(lambda: _settles(site), timeout=slack(10))
    for lease in leases:
        site.limiter.release(lease)
    assert site.count("user:1") == 0
    server.restart_from(copy)
    wait_until(lambda: not site.limiter.peek("user:1").degraded)
    assert site.count("user:1") == 3
    wait_until(lambda: _settles(site), timeout=slack(10))
    assert site.count("user:1") == 0


def test_a_node_of_a_cluster(quick: None) -> None:
    """What came back on one node is named on no other any more, as it had been given back for long."""
    with RedisCluster(replicas=0) as cluster:
        site, other = Site(cluster.url), Site(cluster.url)
        stay = {f"stay:{number}": site.take(f"stay:{number}") for number in range(50)}
        gone = [site.take(f"gone:{number}")[0].lease for number in range(300)]
        other.take("gone:0")
        for one in (site, other):
            one.beat()
        nodes = cluster.masters()
        bookkeeping = cluster.owner("dt:{p}:live")
        for node in nodes:
            copy = node.copy()
            leases = [lease for lease in gone if cluster.owner(site.store.key(*lease.holds[0])) is node]
            for lease in leases:
                site.limiter.release(lease)
            for _ in range(4):
                site.beat()
                site.refresher.resend()
                other.beat()
            assert sum(site.count(ident) for lease in leases for _, ident in lease.holds) <= 1
            node.restart_from(copy)
            cluster.settle()
            restored = sum(_cards(node, site.leases.uid))
            assert restored >= len(leases) > 0
            wait_until(lambda: _settles(site), timeout=slack(20), every=0.1)
            left = {ident: site.count(ident) for lease in leases for _, ident in lease.holds}
            assert sum(left.values()) == left.get("gone:0", 0) <= 1
            assert all(site.count(ident) == 1 for ident in stay)
            print(
                f"{len(leases)} slots came back, {'with' if node is bookkeeping else 'without'} the list of processes"
            )


def _cards(node: RedisServer, uid: str) -> Iterator[int]:
    with node.client() as redis:
        for key in redis.scan_iter(f"dt:{{*}}:*:{uid}", _type="zset"):
            yield int(redis.zcard(key))


def _settles(site: Site) -> bool:
    """Whether a beat and all that follows from it is done."""
    try:
        site.beat()
        while site.refresher.resend() is not None:
            pass
    except StoreError:
        return False
    return True
