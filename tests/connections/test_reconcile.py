"""Redis evicts keys: a slot that has gone is missed within a beat, whichever it was, and what is in use goes last."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.connections.conftest import MakeSite, Site
from tests.connections.worker import RULE
from tests.servers import RedisServer

HELD = 600


def count(site: Site, redis: Redis) -> int:
    """The idents of which every key is there."""
    uid, names = site.leases.uid, [site.store.key(RULE.id, f"user:{number}") for number in range(HELD)]
    return sum(redis.exists(name, f"{name}:{uid}") == 2 for name in names)  # type: ignore[misc]


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-lfu"])
def test_what_was_evicted_is_registered_again_within_a_beat(policy: str, quick: None, servers: None) -> None:
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site = Site(server.url)
        for number in range(HELD):
            site.take(f"user:{number}")
        site.beat()
        site.take("newest")
        while redis.info("stats")["evicted_keys"] <= 200:
            with redis.pipeline(transaction=False) as pipeline:
                for page in range(50):
                    pipeline.rpush("pages", f"{page}" * 1000)
                pipeline.execute(raise_on_error=False)
        assert count(site, redis) < HELD
        redis.delete("pages")  # or it goes on
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
