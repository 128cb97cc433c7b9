"""Processes beat and are counted; the silent are swept, and who was only paused registers again."""

from __future__ import annotations

import pytest
from redis import Redis

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide, DecideLocally
from django_throttle.exceptions import StoreError
from tests.clock import FrozenClock
from tests.connections.conftest import MakeSite, Site, go_on, keys, raise_away
from tests.servers import RedisServer


def share(site: Site) -> int:
    """How many of twelve this process admits by itself."""
    peek = Decide((Charge(Rule("twelve", "12/hour"), "user:1", 0),), commit=False)
    (answer,) = site.store.execute(DecideLocally(peek))
    return int(answer.remaining)


def test_shares_stay_for_two_beats_after_redis_has_lost_its_data(make_site: MakeSite, server: RedisServer) -> None:
    first, *others = [make_site(server.url) for _ in range(3)]
    for site in (first, *others) * 2:
        site.beat()
    server.restart()
    first.store.transport.pool.close_idle()  # they broke with it
    shares = []
    for _ in range(3):
        first.beat()
        shares.append(share(first))
    assert shares == [4, 4, 12]


def test_the_silent_is_swept_and_its_slots_are_free(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
    """Not by whoever has just begun to beat: Redis may have been away for everybody."""
    dead, living = make_site(), make_site()
    dead.take("user:1", 5)
    dead.take("user:2", 3)
    living.take("user:1", 2)
    living.beat(2)
    go_on(clock, 20, living)  # PROCESS_TTL
    assert (living.count("user:1"), living.store.processes.seen) == (7, 2)
    clock.step(0.001)
    new = make_site()
    new.beat()
    assert living.count("user:1") == 7
    living.beat()
    assert (living.count("user:1"), living.count("user:2"), living.store.processes.seen) == (2, 0, 2)
    assert not [key for key in keys(redis) if dead.leases.uid in key]
    assert sorted(redis.hkeys("dt:{p}:meta")) == sorted([living.leases.uid, new.leases.uid])


def test_a_failed_beat_begins_anew(make_site: MakeSite, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, living = make_site(), make_site()
    silent.take("user:1")
    living.beat(2)
    with monkeypatch.context() as patch:
        patch.setattr(living.store.transport, "send_all", raise_away)
        with pytest.raises(StoreError):
            living.beat()
    clock.step(25)
    living.beat()
    assert living.count("user:1") == 1


@pytest.mark.row("F41")
@pytest.mark.parametrize("seconds", [25, 3600])
def test_time_in_which_nobody_could_beat_does_not_count(make_site: MakeSite, clock: FrozenClock, seconds: int) -> None:
    """The clock is set, or the machine sleeps: the first to beat must not bury all the others."""
    first, second, _ = sites = [make_site() for _ in range(3)]
    for site in sites:
        site.take("user:1", 2)
        site.beat(2)
    clock.step(seconds)
    first.beat(3)
    assert first.count("user:1") == 6
    go_on(clock, 19, first, second)
    assert second.count("user:1") == 6
    go_on(clock, 2, first, second)
    assert second.count("user:1") == 4, "the dead one has now been silent while others were not"


@pytest.mark.row("F41")
def test_after_the_clock_went_back_the_dead_are_still_found(make_site: MakeSite, clock: FrozenClock) -> None:
    dead, living = make_site(), make_site()
    dead.take("user:1", 2)
    living.beat(2)
    clock.step(-3600)
    living.beat()
    assert living.count("user:1") == 2
    go_on(clock, 20.1, living)
    assert living.count("user:1") == 0


def test_who_was_only_paused_registers_again(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
    """It takes connections before it beats: none is registered under the uid that was buried."""
    paused, living = make_site(), make_site()
    first, *_ = paused.take("user:1", 3)
    old = paused.leases.uid
    living.beat(2)
    go_on(clock, 21, living)
    assert living.count("user:1") == 0
    paused.take("user:1")  # announced, as far as it knows
    paused.take("user:2")
    assert paused.leases.lost and old not in redis.zrange("dt:{p}:live", 0, -1)
    paused.reconciler.resend()  # at the latest half a second later
    assert (living.count("user:1"), living.count("user:2")) == (4, 1)
    assert paused.leases.uid != old and not [key for key in keys(redis) if old in key]
    paused.limiter.release(first.lease)
    living.beat()
    assert (living.count("user:1"), living.store.processes.seen) == (3, 2)
