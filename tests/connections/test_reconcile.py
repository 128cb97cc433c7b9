"""Redis evicts keys: a slot that has gone is missed within a beat, whichever it was, and what is in use goes last."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from redis import Redis

from django_throttle import agent
from tests.connections.conftest import Site
from tests.connections.worker import RULE
from tests.servers import RedisServer, slack, wait_until

Make = Callable[..., Site]
HELD = 1200


def count(site: Site, redis: Redis) -> int:
    """The idents of which every key is there."""
    uid, names = site.leases.uid, [site.store.key(RULE.id, f"user:{number}") for number in range(HELD)]
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.exists(name, f"{name}:{uid}")
        return pipeline.execute().count(2)


def fill(redis: Redis, reads: int = 0) -> int:
    """Write pages, as a cache does, until something has been evicted that is ours; how many were written."""
    for number in range(0, 200_000, 50):
        write(redis, number, reads)
        if redis.info("stats")["evicted_keys"] > 200:
            return number + 50
    raise AssertionError("nothing is evicted")


POLICIES = [f"allkeys-{which}" for which in ("lru", "lfu", "random")]
POLICIES += [f"volatile-{which}" for which in ("lru", "lfu", "ttl", "random")]


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_evicted_is_registered_again_within_a_beat(
    policy: str, quick: None, figure: Callable[..., None]
) -> None:
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        site.beat()
        site.take("newest")
        assert count(site, redis) == HELD
        written = fill(redis, reads=READS if policy == "allkeys-lfu" else 0)
        lost = HELD - count(site, redis)
        redis.delete(*[f"page:{number}" for number in range(written)])  # or it goes on
        redis.config_set("slowlog-log-slower-than", 0)
        redis.config_set("slowlog-max-len", 10_000)
        site.beat()
        while site.reconciler.resend() is not None:
            pass
        site.reconciler.resend()
        scripts = [one["duration"] for one in redis.slowlog_get(10_000) if one["command"].startswith(b"EVAL")]
        figure("slots evicted, of 1,200, and registered again,", lost)
        figure("scripts in the beat that does that", len(scripts))
        figure("longest of these scripts", max(scripts) / 1000, "ms")
        assert lost > 0
        assert count(site, redis) == HELD
        # A check for 500 idents; where that finds one missing, a check of each of them, and its registration.
        assert len(scripts) <= 2 * HELD
        assert median(scripts) <= slack(5_000)


@pytest.mark.row("F17")
def test_looking_for_what_was_evicted_costs_little(quick: None, figure: Callable[..., None]) -> None:
    """A beat beside a server that evicts, where nothing of ours has gone: one command for 500 idents."""
    with RedisServer("--maxmemory", "32mb", "--maxmemory-policy", "allkeys-lfu") as server, server.client() as redis:
        site = Site(server.url)
        for number in range(4 * HELD):
            site.take(f"user:{number}")
        site.beat()
        fill(redis)
        redis.config_set("slowlog-log-slower-than", 0)
        redis.config_set("slowlog-max-len", 10_000)
        redis.slowlog_reset()
        site.beat()
        while site.reconciler.resend() is not None:
            pass
        took = [one["duration"] for one in redis.slowlog_get(10_000) if one["command"].startswith(b"EVAL")]
        figure("scripts in a beat beside a server that evicts, with 4,800 slots,", len(took))
        figure("time of Redis in that beat", sum(took) / 1000, "ms")
        figure("longest of its scripts", max(took) / 1000, "ms")
        assert len(took) <= 4 * HELD / 500 + 20
        assert median(took) <= slack(5_000)


BEAT = 0.5
# Of a cache on the same server of 6 MB: what it writes a second, in bytes, and how often it reads what it has written.
CACHES = {"slow": (1_000_000, 0), "fast": (50_000_000, 0), "read": (1_000_000, 20)}
READS = CACHES["read"][1]
LOST = [
    ("noeviction", "slow", "none"),
    ("allkeys-lfu", "slow", "none"),
    ("allkeys-lfu", "fast", "none"),
    ("allkeys-lfu", "read", "most"),
    ("allkeys-lru", "slow", "some"),
    ("allkeys-lru", "fast", "most"),
    ("volatile-lru", "slow", "most"),
    ("volatile-ttl", "slow", "most"),
]
KEPT = {"none": (0.95, 1.0), "some": (0.5, 1.0), "most": (0.0, 0.5)}  # of all slots, at any time


@pytest.mark.row("F17")
@pytest.mark.agent
@pytest.mark.parametrize(("policy", "cache", "lost"), LOST)
def test_beside_a_cache(policy: str, cache: str, lost: str, settings: Any, figure: Callable[..., None]) -> None:
    """The table of docs/howto/sites.rst, with beats of half a second and silent sockets."""
    settings.DJANGO_THROTTLE = {"BEAT_INTERVAL": BEAT, "DATABASE_RULES": False, "DEADLINE": 5.0}
    rate, reads = CACHES[cache]
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        agent.ensure(site.store)
        written = 0
        while redis.info("memory")["used_memory"] < 5_500_000:
            written += write(redis, written, reads)
        began, first, fewest = time.monotonic(), written, HELD
        while time.monotonic() < began + 6 * BEAT:
            until = time.monotonic() + BEAT / 4
            while time.monotonic() < until and written - first < (time.monotonic() - began) * rate / 1000:
                written += write(redis, written, reads)
            fewest = min(fewest, count(site, redis))
        figure(f"most slots away at once, of 1,200, ``{policy}``, {cache} cache,", HELD - fewest)
        least, most = KEPT[lost]
        assert least * HELD <= fewest <= most * HELD
        for number in range(0, written, 1000):
            redis.delete(*[f"page:{page}" for page in range(number, number + 1000)])
        back = wait_until(lambda: count(site, redis) == HELD, timeout=slack(BEAT + 2.0))
        figure("all there again after, with a beat of 0.5 s,", back, "s")


def write(redis: Redis, begin: int, reads: int = 0, **options: Any) -> int:
    """Write 50 pages of a cache and read each of them so often; returns 50. A full server may refuse them."""
    with redis.pipeline(transaction=False) as pipeline:
        for page in range(begin, begin + 50):
            pipeline.set(f"page:{page}", "x" * 1000, **options)
            for _ in range(reads):
                pipeline.get(f"page:{page}")
        pipeline.execute(raise_on_error=False)
    return 50


def test_on_a_server_that_is_nearly_full_what_is_held_stays(quick: None) -> None:
    """It is looked at in each beat, so a cache's pages are older.

    Redis tells ages by the second, and this takes two: so few pages are written between two beats that their evictions
    alone cannot take a fifth of the slots. Without beats a thousand go.
    """
    options = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "64")
    with RedisServer(*options) as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        written, lowest = 0, HELD
        for _ in range(100):
            with redis.pipeline(transaction=False) as pipeline:
                for page in range(written, written + 100):
                    pipeline.set(f"page:{page}", "x" * 1000)
                pipeline.execute()
            written += 100
            if redis.info("memory")["used_memory"] > 7_000_000:
                site.beat()
                site.reconciler.resend()
            lowest = min(lowest, count(site, redis))
        evicted = redis.info("stats")["evicted_keys"]
        print(f"{evicted} keys were evicted; at least {lowest} of {HELD} were there at any time")
        assert evicted > 1000
        assert lowest > 0.8 * HELD


def test_an_evicted_announcement_is_made_again(make_site: Make, redis_server: RedisServer) -> None:
    """Else nobody could sweep what this process leaves behind."""
    site = make_site()
    site.take("user:1")
    site.limiter.release(site.take("user:2")[0].lease)
    site.beat()
    with redis_server.client() as redis:
        held = f"dt:{{p}}:held:{site.leases.uid}"
        redis.delete(held)
        site.reconciler.check_all()
        site.reconciler.resend()
        assert redis.smembers(held) == {site.store.key(RULE.id, "user:1")}
        site.take("user:2")
        assert redis.scard(held) == 2


def test_a_lease_that_is_released_while_redis_is_asked_for_it_is_no_loss(
    make_site: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who registers again for nothing has slots missing for a moment, and others are granted them."""
    site = make_site()
    released = site.take("user:1", 2)[-1].lease
    site.reconciler.resend()
    records, uid = site.reconciler.losses.records, site.leases.uid
    ask = records.are_held

    def holds(*asked: Any) -> list[bool | None]:
        site.limiter.release(released)
        return ask(*asked)

    monkeypatch.setattr(records, "are_held", holds)
    site.beat()
    assert not site.leases.lost and site.leases.uid == uid
    assert site.count("user:1") == 1


def test_without_eviction_nothing_is_looked_for(quick: None) -> None:
    with RedisServer() as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        for _ in range(3):
            site.beat()
            site.reconciler.resend()
        assert "cmdstat_touch" not in redis.info("commandstats")
        wait_until(lambda: count(site, redis) == HELD)
