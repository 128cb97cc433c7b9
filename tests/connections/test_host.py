"""A host beats, sweeps and extends for its processes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from redis import Redis

from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.clock import FrozenClock
from tests.connections.conftest import Site, go_on
from tests.connections.worker import RULE

Make = Callable[..., Site]
pytestmark = pytest.mark.usefixtures("steady_at_the_second_beat")


def test_a_host_sees_who_died_here(
    make_site: Make, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    living, dead, elsewhere = make_site(), make_site(), make_site()
    for site in (living, dead, elsewhere):
        site.take("user:1", 2)
        site.beat()
    there = '{"host":"elsewhere","pid":1,"started":1,"held":2}'
    redis.hset("dt:{p}:meta", elsewhere.leases.uid, there)
    redis.hset("dt:{p}:meta", dead.leases.uid, dead.leases.report().replace('"started":', '"started":1'))
    command = HostRefresher(make_site().store)
    status = command.refresh()
    assert status == (2, 1, 4, 2, 0), "who beats for itself extends for itself"
    assert living.count("user:1") == 4
    clock.step(19)
    assert command.refresh() == (2, 0, 4, 0, 0)
    clock.step(2)
    assert command.refresh() == (1, 1, 2, 2, 1), "silent, and not of this host"
    assert living.count("user:1") == 2
    living.beat()
    assert living.store.processes.seen == 1, "the command counts as nobody"


def test_a_new_process_frees_what_its_crashed_sibling_left(make_site: Make, redis: Redis) -> None:
    dead = make_site()
    dead.take("user:1", 2)
    redis.hset("dt:{p}:meta", dead.leases.uid, dead.leases.report().replace('"started":', '"started":1'))
    new = make_site()
    new.beat()
    assert new.count("user:1") == 0


def test_a_host_extends_for_who_does_not_beat_for_itself(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    quiet, command = make_site(), HostRefresher(make_site().store)
    quiet.take("user:1")
    index = quiet.store.key(RULE.id, "user:1")
    redis.pexpire(index, 5000)
    assert command.refresh().extended == 1
    assert redis.pttl(index) > 500_000
    quiet.beat()
    fresh = HostRefresher(make_site().store)
    assert fresh.refresh().extended == 0
    clock.step(10)
    fresh.refresh()
    clock.step(10.001)  # PROCESS_TTL since its last beat: it lives, and has stopped beating
    assert fresh.refresh().extended == 1


def test_a_host_vouches_for_one_uid_of_a_process(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    """A former one is back with an old copy of Redis' data, and nobody knows it any more."""
    site, command = make_site(), HostRefresher(make_site().store)
    site.take("user:1")
    site.beat()
    former, report = site.leases.uid, site.leases.report()
    redis.flushall()
    site.beat()
    site.leases.former = ()
    redis.hset("dt:{p}:meta", former, report)
    redis.zadd("dt:{p}:live", {former: clock.now_us})
    for _ in range(5):
        clock.step(5)
        site.beat()
        command.refresh()
    assert redis.zrange("dt:{p}:live", 0, -1) == [site.leases.uid]


def test_a_host_vouches_for_the_paused(make_site: Make, clock: FrozenClock) -> None:
    """Stopped or blocked, but it exists: what it holds is open."""
    paused, command = make_site(), HostRefresher(make_site().store)
    paused.take("user:1", 2)
    for _ in range(10):
        clock.step(10)
        command.refresh()
    assert paused.count("user:1") == 2
    uid = paused.leases.uid
    paused.beat()
    assert paused.leases.uid == uid


def test_more_processes_than_one_beat_sweeps(make_site: Make, clock: FrozenClock) -> None:
    crowd = [make_site() for _ in range(25)]
    for site in crowd:
        site.take("user:1")
    living = make_site()
    living.beat(2)
    go_on(clock, 20, living)
    clock.step(0.001)
    living.beat(math.ceil(25 / 10))
    assert living.count("user:1") == 0
