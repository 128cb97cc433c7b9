"""However takes, releases, beats, burials and lost data interleave, Redis ends with what is truly held."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

from django_throttle.exceptions import StoreError
from tests.connections.conftest import BATCHING, Site
from tests.servers import RedisServer

IDENTS = [f"user:{number}" for number in range(6)]
# Under `make faults` alone, the last one for ten minutes.
PLAYED = [(0, 2.0), (1, 2.0), (2, 2.0), *([(3, 600.0)] if "LONG_OUTAGES" in os.environ else [])]


@pytest.fixture(autouse=True)
def hasty(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that usually takes seconds happens all the time."""
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "BEAT_INTERVAL": 0.0}
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 3)


@pytest.mark.row("F55")
@pytest.mark.parametrize(("seed", "seconds"), PLAYED)
def test_nothing_drifts(
    seed: int, seconds: float, servers: None, redis_server: RedisServer, redis_url: str, figure: Callable[..., None]
) -> None:
    sites = [Site(redis_url) for _ in range(3)]
    open_leases: list[list[Any]] = [[] for _ in sites for _ in range(2)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=refresh, args=(site, until)) for site in sites]
    for number, leases in enumerate(open_leases):
        chance = random.Random(f"{seed}/{number}")
        threads.append(threading.Thread(target=hold_and_release, args=(sites[number // 2], leases, chance, until)))
    with redis_server.client() as redis:
        threads.append(threading.Thread(target=meddle, args=(redis, random.Random(seed), until)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for site in sites * 2:
            for work in (site.beat, site.reconciler.extend, site.reconciler.resend):
                work()
        held = [sum(site.leases.count(site.rule.id, ident) for site in sites) for ident in IDENTS]
        counted = [sites[0].count(ident) for ident in IDENTS]
        figure("seconds of faults", seconds, "s")
        assert counted == held
        assert sum(held) == sum(map(len, open_leases)) > 0
        assert len(redis.zrange("dt:{p}:live", 0, -1)) == 3


def hold_and_release(site: Site, leases: list[Any], chance: random.Random, until: float) -> None:
    while time.monotonic() < until:
        if leases and chance.random() < 0.5:
            site.limiter.release(leases.pop(chance.randrange(len(leases))))
        else:
            (decision,) = site.take(chance.choice(IDENTS))
            leases.append(decision.lease)


def refresh(site: Site, until: float) -> None:
    while time.monotonic() < until:
        for work in (site.beat, site.reconciler.resend, site.reconciler.extend):
            with suppress(StoreError):  # as the agent does: Redis is late, and the next beat tries again
                work()


def meddle(redis: Redis, chance: random.Random, until: float) -> None:
    """Lose all data, or make one process look silent for an hour."""
    while time.monotonic() < until:
        time.sleep(chance.uniform(0, 0.05))
        if chance.random() < 0.2:
            redis.flushall()
        elif live := redis.zrange("dt:{p}:live", 0, -1):
            redis.zadd("dt:{p}:live", {chance.choice(live): 1}, xx=True)  # type: ignore[arg-type]
