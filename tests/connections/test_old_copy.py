"""Redis comes back with an old copy of its data: what was closed since then is not open, what is open counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from django_throttle.conf import Conf
from django_throttle.exceptions import StoreError
from tests.connections.conftest import Site, Worker
from tests.connections.test_processes import Refreshing
from tests.connections.worker import RULE
from tests.fleet import RedisCluster
from tests.servers import RedisServer, slack, wait_until

MakeWorker = Callable[..., Worker]
CLOSED = 1500
MANY = 100_000
# What a process has in Redis of each of these users (KEYS from the second one on), as it would have taken one slot of
# each. KEYS[1] is where it names them. ARGV: its uid, microseconds, milliseconds.
TAKEN = """
for i = 2, #KEYS do
  redis.call('SADD', KEYS[i], ARGV[1])
  redis.call('ZADD', KEYS[i] .. ':' .. ARGV[1], ARGV[2], 'lease ' .. i)
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
  redis.call('PEXPIRE', KEYS[i] .. ':' .. ARGV[1], ARGV[3])
  redis.call('SADD', KEYS[1], KEYS[i])
end
"""
# And what is left of it when they have been given back, and are named no more.
CLOSED_AGAIN = """
for i = 2, #KEYS do
  redis.call('DEL', KEYS[i], KEYS[i] .. ':' .. ARGV[1])
  redis.call('SREM', KEYS[1], KEYS[i])
end
"""
BATCH = 500
LONGEST_SCRIPT = 0.01  # seconds
LONGEST_DECISION = 0.045
USUAL = {"BEAT_INTERVAL": Conf().BEAT_INTERVAL, "PROCESS_TTL": Conf().PROCESS_TTL}
BEATS = {"BEAT_INTERVAL": 1.0, "PROCESS_TTL": 4.0}
TWO_BEATS = 2 * BEATS["BEAT_INTERVAL"]


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


def slowest(
    site: Site, happened: Callable[[], object], timeout: float, server: RedisServer | None = None
) -> tuple[float, float]:
    """Wait for it, and decide meanwhile: the seconds that it took, and the longest decision.

    Of a decision without the time in which this process and the server had no processor.
    """
    pids = (os.getpid(), server.pid) if server else ()
    longest, started = 0.0, time.monotonic()
    while not happened():
        for number in range(20):
            waited, began = starved(*pids), time.perf_counter()
            site.limiter.peek(f"other:{number}")
            longest = max(longest, time.perf_counter() - began - starved(*pids) + waited)
        time.sleep(0.02)  # else nobody else gets that processor
        assert time.monotonic() - started < timeout
    return time.monotonic() - started, longest


def starved(*pids: int) -> float:
    """For how many seconds the threads of these processes were ready to run and had no processor, by now."""
    found = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # the thread has ended
                found += int(path.read_text().split()[1])
    return found / 1e9


@pytest.mark.parametrize("refreshed", [False, True], ids=["alone", "with the command"])
def test_what_was_closed_since_is_gone_within_two_beats(
    refreshed: bool, server: RedisServer, site: Site, make_worker: MakeWorker
) -> None:
    """Long ago, so that even the announcements were taken back; what is open is open all the time."""
    workers = [make_worker(REDIS=server.url, **BEATS) for _ in range(2)]
    command = Refreshing(server.url, "--interval", "0.2") if refreshed else None
    with server.client() as redis:
        try:
            for number, worker in enumerate(workers):
                worker.ask("acquire_each", f"stay{number}", 50)
                worker.ask("acquire_each", f"gone{number}", CLOSED // 2)
            ended = make_worker(REDIS=server.url, **BEATS)
            ended.ask("acquire_each", "ended", 50)
            # Asked now: of what comes back the command frees some before anybody can look.
            assert held(site, redis, "gone0", CLOSED // 2) == CLOSED // 2 and held(site, redis, "ended", 50) == 50
            copy = server.copy()
            ended.leave()
            for worker in workers:
                worker.ask("release", CLOSED // 2)
                worker.ask("acquire", "late:0", 2)
            named = [f"dt:{{p}}:held:{worker.ask('uid')}" for worker in workers]
            wait_until(lambda: [redis.scard(key) for key in named] == [51, 51], timeout=slack(20))
            assert held(site, redis, "gone0", CLOSED // 2) == 0
            server.restart_from(copy)

            lowest = [20]

            def is_right() -> bool:
                stay = [f"stay{worker}:{number}" for worker in range(2) for number in range(0, 50, 5)]
                lowest.append(sum(map(site.count, stay)))
                if redis.dbsize() > CLOSED:  # two keys each: not worth looking at all of them
                    return False
                gone = held(site, redis, "gone0", CLOSED // 2) + held(site, redis, "gone1", CLOSED // 2)
                return gone == held(site, redis, "ended", 50) == 0 and held(site, redis, "late", 1) == 4

            took, longest = slowest(site, is_right, slack(60))
            print(
                f"{CLOSED} closed slots came back, {took:.2f} s until none was left, with a beat of "
                f"{BEATS['BEAT_INTERVAL']} s; the longest decision meanwhile {longest * 1000:.0f} ms"
            )
            assert took < slack(TWO_BEATS)
            assert min(lowest) == 20, "what is open counts all the time"
        finally:
            if command:
                command.process.kill()
                command.process.wait()
                command.stdout.close()


@pytest.mark.row("F23")
def test_a_hundred_thousand_are_gone_within_two_beats(make_worker: MakeWorker, figure: Callable[..., None]) -> None:
    """With the default beats. To open and close as many takes minutes, so they are written as Redis has them.

    Of the sweep, the time in which Redis and the process had no processor is left out.
    """
    with RedisServer("--slowlog-log-slower-than", "500", "--slowlog-max-len", "100000") as server:
        site, redis = Site(server.url), server.client(socket_timeout=60)
        workers = [make_worker(REDIS=server.url, **USUAL) for _ in range(2)]
        for number, worker in enumerate(workers):
            worker.ask("acquire_each", f"stay{number}", 50)
        uids = [worker.ask("uid") for worker in workers]
        gone = [[site.store.key(RULE.id, f"gone{n}:{m}") for m in range(MANY // 2)] for n in range(2)]
        write(redis, TAKEN, uids, gone)
        real, written = site.store.key(RULE.id, "stay0:0"), gone[0][0]
        assert shape(redis, real, uids[0]) == shape(redis, written, uids[0])
        copy = server.copy()
        write(redis, CLOSED_AGAIN, uids, gone)
        assert cards(redis) == 100
        closed_at = redis.time()[0]
        # So that the next beat is as far away as can be.
        wait_until(lambda: min(redis.zmscore("dt:{p}:live", uids)) > (closed_at + 1) * 1e6, timeout=slack(15))
        server.restart_from(copy)
        assert redis.dbsize() > MANY, "two keys of each slot came back, and few have gone again so soon"
        began, whole = busy(redis), redis.dbsize()
        seen_after, _ = slowest(site, lambda: redis.dbsize() < whole - 100, slack(30))
        waited = [starved(server.pid, worker.process.pid) for worker in workers]
        swept_after, longest = slowest(site, lambda: redis.dbsize() < 1000, slack(60), server)
        swept_after -= max(starved(server.pid, one.process.pid) - w for one, w in zip(workers, waited, strict=True))
        seconds, took = busy(redis) - began, seen_after + max(swept_after, 0.0)
        scripts = [one["command"].split() for one in redis.slowlog_get(100_000) if b"EVALSHA" in one["command"]]
        most = max(int(keys) for _, _, keys, *_ in scripts)
        assert cards(redis) == 100
        assert sum(site.count(f"stay{worker}:{number}") for worker in range(2) for number in range(50)) == 100
        redis.close()
    figure("100,000 closed slots of an old copy were gone after, with beats of 5 s,", took, "s")
    figure("Redis' time for the longest script meanwhile", seconds / MANY * most * 1000, "ms")
    figure("longest decision meanwhile", longest * 1000, "ms")
    assert took < slack(2 * USUAL["BEAT_INTERVAL"])
    assert most == BATCH, "users in one script"
    assert seconds / MANY * most < slack(LONGEST_SCRIPT)
    assert longest < slack(LONGEST_DECISION)


def busy(redis: Redis) -> float:
    """Seconds that Redis has worked, decisions included: a busy machine lets each script last longer than that."""
    told = redis.info("cpu")
    return float(told["used_cpu_user_main_thread"] + told["used_cpu_sys_main_thread"])


def write(redis: Redis, script: str, uids: list[str], indexes: list[list[str]]) -> None:
    """In batches of a thousand users, for each process."""
    now = redis.time()[0] * 1_000_000
    for uid, keys in zip(uids, indexes, strict=True):
        for first in range(0, len(keys), 1000):
            some = [f"dt:{{p}}:held:{uid}", *keys[first : first + 1000]]
            redis.eval(script, len(some), *some, uid, now, 600_000)


def shape(redis: Redis, index: str, uid: str) -> list[object]:
    """How Redis keeps what a process has of a user."""
    keys = index, f"{index}:{uid}"
    assert redis.sismember(f"dt:{{p}}:held:{uid}", index) and redis.smembers(index) == {uid}
    assert all(500 < redis.ttl(key) <= 600 for key in keys)
    return [(redis.type(key), redis.object("encoding", key)) for key in keys] + [redis.zcard(keys[1])]


def cards(redis: Redis) -> int:
    """All slots that Redis has."""
    keys = list(redis.scan_iter("dt:{*}:*:*", count=10_000, _type="zset"))
    with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.zcard(key)
        return int(sum(pipeline.execute()))


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


def test_nodes_of_a_cluster(make_worker: MakeWorker, quick: None, figure: Callable[..., None]) -> None:
    """What came back on one node is named on no other any more: neither what was closed nor who has ended."""
    beats = {"BEAT_INTERVAL": 3.0, "PROCESS_TTL": 9.0}
    with RedisCluster(replicas=0) as cluster:
        site = Site(cluster.url)
        one, other, ended = (make_worker(REDIS=cluster.url, **beats) for _ in range(3))
        one.ask("acquire_each", "stay", 50)
        other.ask("acquire", "stay:0")
        one.ask("acquire_each", "gone", 300)
        ended.ask("acquire_each", "ended", 300)
        copies = {node: node.copy() for node in cluster.masters()}
        one.ask("release", 300)
        ended.leave()
        bookkeeping = cluster.owner("dt:{p}:live")
        with bookkeeping.client() as redis:  # the announcements are taken back
            wait_until(lambda: redis.scard(f"dt:{{p}}:held:{one.ask('uid')}") == 50, timeout=slack(20), every=0.1)
        for node, copy in copies.items():
            kinds = {kind: _on(cluster, site, node, kind) for kind in ("gone", "ended")}
            assert all(map(len, kinds.values()))
            node.restart_from(copy)
            began, left = time.monotonic(), dict[str, float]()
            cluster.settle()
            while len(left) < 2:
                for kind in kinds.keys() - left.keys():
                    if not _cards(node, kinds[kind]):
                        left[kind] = time.monotonic() - began
                assert time.monotonic() - began < slack(60)
                time.sleep(0.05)
            which = "that has the list of processes" if node is bookkeeping else "of a Cluster"
            print(f"an old copy on a node {which}, with beats of 3 s: {left}")
            assert left["gone"] < slack(2 * beats["BEAT_INTERVAL"])
            silence = beats["PROCESS_TTL"] if node is bookkeeping else 0.0
            assert left["ended"] < slack(2 * beats["BEAT_INTERVAL"] + silence)
            # A copy older than PROCESS_TTL has lost the slots of who stays: the next beat adds them again.
            wait_until(
                lambda: [site.count(f"stay:{number}") for number in range(50)] == [2] + [1] * 49,
                timeout=slack(2 * beats["BEAT_INTERVAL"]),
            )


def _on(cluster: RedisCluster, site: Site, node: RedisServer, kind: str) -> list[str]:
    """Where a node has the slots of those users."""
    indexes = [site.store.key(RULE.id, f"{kind}:{number}") for number in range(300)]
    return [index for index in indexes if cluster.owner(index) is node]


def _cards(node: RedisServer, indexes: list[str]) -> int:
    """The slots that are counted there."""
    with node.client() as redis:
        return sum(redis.zcard(f"{index}:{uid}") for index in indexes for uid in redis.smembers(index))


def _settles(site: Site) -> bool:
    """Whether a beat and all that follows from it is done."""
    try:
        site.beat()
        while site.reconciler.resend() is not None:
            pass
    except StoreError:
        return False
    return True
