"""Redis evicts keys: a slot that has gone is missed within a beat, whichever it was, and what is in use goes last."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis import Redis

from tests.connections.conftest import MakeSite, Site
from tests.connections.worker import RULE
from tests.servers import RedisServer, wait_until

HELD = 600
# Of a cache on the same server of 6 MB: pages of 1 kB that it writes in a beat, and how often it reads each of them.
CACHES = {"slow": (400, 0), "fast": (4000, 0), "read": (400, 20)}
AGES_SECONDS = 0.5  # in a beat, where Redis compares ages, which it tells by the second
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


def take_all(site: Site, number: int = HELD) -> None:
    for user in range(number):
        site.take(f"user:{user}")


def count(site: Site, redis: Redis) -> int:
    """The idents of which every key is there."""
    uid, names = site.leases.uid, [site.store.key(RULE.id, f"user:{number}") for number in range(HELD)]
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.exists(name, f"{name}:{uid}")
        return pipeline.execute().count(2)


def write(redis: Redis, begin: int, reads: int = 0) -> int:
    """Write 50 pages of a cache and read each of them so often; returns 50. A full server may refuse them."""
    with redis.pipeline(transaction=False) as pipeline:
        for page in range(begin, begin + 50):
            pipeline.set(f"page:{page}", "x" * 1000)
            for _ in range(reads):
                pipeline.get(f"page:{page}")
        pipeline.execute(raise_on_error=False)
    return 50


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-random", "volatile-lfu"])
def test_what_was_evicted_is_registered_again_within_a_beat(policy: str, quick: None, servers: None) -> None:
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site, written = Site(server.url), 0
        take_all(site)
        site.beat()
        site.take("newest")
        while redis.info("stats")["evicted_keys"] <= 200:
            written += write(redis, written)
        assert count(site, redis) < HELD
        redis.delete(*[f"page:{number}" for number in range(written)])  # or it goes on
        assert site.settle()
        assert count(site, redis) == HELD


@pytest.mark.row("F17")
@pytest.mark.parametrize(("policy", "cache", "lost"), LOST)
def test_beside_a_cache(
    policy: str, cache: str, lost: str, quick: None, servers: None, figure: Callable[..., None]
) -> None:
    """The table of docs/howto/sites.rst, with silent sockets."""
    pages, reads = CACHES[cache]
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site, written, fewest = Site(server.url), 0, HELD
        take_all(site)
        site.settle()
        while redis.info("memory")["used_memory"] < 5_500_000:
            written += write(redis, written, reads)
        for _ in range(6):
            next_beat = time.monotonic() + AGES_SECONDS * ("lru" in policy)
            for _ in range(4):
                for _ in range(pages // 200):
                    written += write(redis, written, reads)
                fewest = min(fewest, count(site, redis))
            wait_until(lambda: time.monotonic() > next_beat)  # noqa: B023
            site.beat()
            site.reconciler.resend()
        figure(f"most slots away at once, of 600, ``{policy}``, {cache} cache,", HELD - fewest)
        least, most = KEPT[lost]
        assert least * HELD <= fewest <= most * HELD
        for number in range(0, written, 1000):
            redis.delete(*[f"page:{page}" for page in range(number, number + 1000)])
        assert site.settle()
        assert count(site, redis) == HELD


def test_an_evicted_announcement_is_made_again(make_site: MakeSite, redis: Redis) -> None:
    """Else nobody could sweep what this process leaves behind."""
    site = make_site()
    site.take("user:1")
    site.limiter.release(site.take("user:2")[0].lease)
    site.beat()
    held = f"dt:{{p}}:held:{site.leases.uid}"
    redis.delete(held)
    site.reconciler.check_all()
    site.reconciler.resend()
    assert redis.smembers(held) == {site.store.key(RULE.id, "user:1")}
    site.take("user:2")
    assert redis.scard(held) == 2


def test_a_lease_that_is_released_while_redis_is_asked_for_it_is_no_loss(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who registers again for nothing has slots missing for a moment, and others are granted them."""
    site = make_site()
    released = site.take("user:1", 2)[-1].lease
    site.reconciler.resend()
    records, uid = site.reconciler.losses.records, site.leases.uid
    ask = records.are_held

    def release_first(*asked: object) -> list[bool | None]:
        site.limiter.release(released)
        return ask(*asked)

    monkeypatch.setattr(records, "are_held", release_first)
    site.beat()
    assert not site.leases.lost and site.leases.uid == uid
    assert site.count("user:1") == 1
