"""Redis evicts keys: a slot that has gone is missed within a beat, whichever it was, and what is in use goes last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tests.connections.conftest import Site
from tests.connections.worker import RULE
from tests.servers import RedisServer, wait_until

Make = Callable[..., Site]
HELD = 1200


def count(site: Site, redis: Redis) -> int:
    """The idents of which every key is there."""
    uid, names = site.leases.uid, [site.store.key(RULE.id, f"user:{number}") for number in range(HELD)]
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.exists(name, f"{name}:{uid}")
        return pipeline.execute().count(2)


def fill(redis: Redis, begin: int = 0, **options: Any) -> int:
    """Write pages, as a cache does, until something has been evicted that is ours; how many were written."""
    for number in range(begin, begin + 200_000, 100):
        with redis.pipeline(transaction=False) as pipeline:
            for page in range(number, number + 100):
                pipeline.set(f"page:{page}", "x" * 1000, **options)
            pipeline.execute()
        if redis.dbsize() and redis.info("stats")["evicted_keys"] > 200:
            return number + 100
    raise AssertionError("nothing is evicted")


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
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
        written = fill(redis)
        lost = HELD - count(site, redis)
        redis.delete(*[f"page:{number}" for number in range(written)])  # or it goes on
        site.beat()
        while site.refresher.resend() is not None:
            pass
        site.refresher.resend()
        figure("slots evicted, of 1,200, and registered again,", lost)
        assert lost > 0
        assert count(site, redis) == HELD


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
                site.refresher.resend()
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
        site.refresher.check_all()
        site.refresher.resend()
        assert redis.smembers(held) == {site.store.key(RULE.id, "user:1")}
        site.take("user:2")
        assert redis.scard(held) == 2


def test_without_eviction_nothing_is_looked_for(quick: None) -> None:
    with RedisServer() as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        for _ in range(3):
            site.beat()
            site.refresher.resend()
        assert "cmdstat_touch" not in redis.info("commandstats")
        wait_until(lambda: count(site, redis) == HELD)
