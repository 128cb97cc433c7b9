"""A host beats, sweeps and extends for its processes."""

from __future__ import annotations

from redis import Redis

from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.clock import FrozenClock
from tests.connections.conftest import MakeSite, Site
from tests.connections.worker import RULE


def crash(site: Site, redis: Redis) -> None:
    """Have a site report another start than its pid has now, as if it had ended."""
    redis.hset("dt:{p}:meta", site.leases.uid, site.leases.report().replace('"started":', '"started":1'))


def test_a_host_sees_who_died_here(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
    living, dead, elsewhere = sites = [make_site() for _ in range(3)]
    for site in sites:
        site.take("user:1", 2)
        site.beat()
    redis.hset("dt:{p}:meta", elsewhere.leases.uid, '{"host":"elsewhere","pid":1,"started":1,"held":2}')
    crash(dead, redis)
    command = HostRefresher(make_site().store)
    assert command.refresh() == (2, 1, 4, 2, 0), "who beats for itself extends for itself"
    assert living.count("user:1") == 4
    clock.step(19)
    assert command.refresh() == (2, 0, 4, 0, 0)
    clock.step(2)
    assert command.refresh() == (1, 1, 2, 2, 1), "silent, and not of this host"
    assert living.count("user:1") == 2
    living.beat()
    assert living.store.processes.seen == 1, "the command counts as nobody"


def test_a_host_extends_for_who_does_not_beat_for_itself(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
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


def test_a_host_vouches_for_the_paused(make_site: MakeSite, clock: FrozenClock) -> None:
    """Stopped or blocked, but it exists: what it holds is open."""
    paused, command = make_site(), HostRefresher(make_site().store)
    paused.take("user:1", 2)
    uid = paused.leases.uid
    for _ in range(10):
        clock.step(10)
        command.refresh()
    paused.beat()
    assert (paused.count("user:1"), paused.leases.uid) == (2, uid)
