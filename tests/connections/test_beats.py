"""Processes beat and are counted; the silent are swept, and who was only paused registers again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide, DecideLocally
from django_throttle.exceptions import StoreError
from tests.clock import FrozenClock
from tests.connections.conftest import Site, go_on, keys, raise_unavailable
from tests.servers import RedisServer

Make = Callable[..., Site]
pytestmark = pytest.mark.usefixtures("steady_at_the_second_beat")


def test_processes_are_counted_by_their_beats(make_site: Make) -> None:
    one, two = make_site(), make_site()
    one.beat()
    two.beat()
    one.beat()
    assert (one.store.processes.seen, two.store.processes.seen) == (2, 2)


def share(site: Site) -> int:
    """What this process would admit of twelve by itself."""
    peek = Decide((Charge(Rule("twelve", "12/hour"), "user:1", 0),), commit=False)
    (answer,) = site.store.execute(DecideLocally(peek))
    return int(answer.remaining)


def test_shares_stay_for_two_beats_after_redis_has_lost_its_data(clock: FrozenClock) -> None:
    """Those who have not registered again are still there."""
    with RedisServer() as server:
        first, *_ = sites = [Site(server.url, clock) for _ in range(3)]
        for site in (*sites, *sites):
            site.beat()
        server.restart()
        first.store.transport.pool.close_idle()  # they broke with it
        shares = []
        for _ in range(3):
            first.beat()
            shares.append(share(first))
    assert shares == [4, 4, 12]


def test_shares_stay_while_a_breaker_is_open(make_site: Make) -> None:
    """Whoever is counted no more may only have been unable to beat."""
    first, *others = sites = [make_site() for _ in range(3)]
    for site in (*sites, first):
        site.beat()
    for _ in range(5):
        first.store.breaker.failed()
    for site in others:
        site.reconciler.release_all()
    first.beat(3)
    assert share(first) == 4
    first.store.breaker.succeeded()
    first.beat(2)
    assert share(first) == 12


def test_the_silent_is_swept_and_its_slots_are_free(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    dead, living = make_site(), make_site()
    dead.take("user:1", 5)
    dead.take("user:2", 3)
    living.take("user:1", 2)
    living.beat(2)
    go_on(clock, 20, living)  # PROCESS_TTL
    assert living.count("user:1") == 7
    clock.step(0.001)
    living.beat()
    assert (living.count("user:1"), living.count("user:2")) == (2, 0)
    assert living.store.processes.seen == 1
    assert not [key for key in keys(redis) if dead.leases.uid in key]
    assert redis.hkeys("dt:{p}:meta") == [living.leases.uid]


def test_who_has_just_begun_to_beat_buries_nobody(make_site: Make, clock: FrozenClock) -> None:
    """Redis may have been away for everybody; the others get a beat's time to come back."""
    silent, new = make_site(), make_site()
    silent.take("user:1", 2)
    clock.step(25)
    new.beat()
    assert new.count("user:1") == 2
    new.beat()
    assert new.count("user:1") == 0


def test_a_failed_beat_begins_anew(make_site: Make, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, living = make_site(), make_site()
    silent.take("user:1")
    living.beat(2)
    with monkeypatch.context() as patch:
        patch.setattr(living.store.transport, "send_all", raise_unavailable)
        with pytest.raises(StoreError):
            living.beat()
    clock.step(25)
    living.beat()
    assert living.count("user:1") == 1


def test_time_in_which_nobody_could_beat_does_not_count(make_site: Make, clock: FrozenClock) -> None:
    """The clock jumps, or the machine sleeps: the first to beat must not bury all the others."""
    one, two, dead = make_site(), make_site(), make_site()
    for site in (one, two, dead):
        site.take("user:1", 2)
        site.beat(2)
    clock.step(3600)
    one.beat(3)
    assert one.count("user:1") == 6
    go_on(clock, 19, one, two)
    assert two.count("user:1") == 6
    go_on(clock, 2, one, two)
    assert two.count("user:1") == 4, "the dead one has now been silent while others were not"


@pytest.mark.row("F41")
def test_after_the_clock_went_back_the_dead_are_still_found(make_site: Make, clock: FrozenClock) -> None:
    dead, living = make_site(), make_site()
    dead.take("user:1", 2)
    living.beat(2)
    clock.step(-3600)
    living.beat()
    assert living.count("user:1") == 2
    go_on(clock, 20.1, living)
    assert living.count("user:1") == 0


def test_who_was_only_paused_registers_again(make_site: Make, clock: FrozenClock) -> None:
    paused, living = make_site(), make_site()
    first, *_ = paused.take("user:1", 3)
    old = paused.leases.uid
    living.beat(2)
    go_on(clock, 21, living)
    assert living.count("user:1") == 0
    paused.beat()
    assert paused.leases.uid != old
    assert living.count("user:1") == 3
    paused.beat()
    paused.limiter.release(first.lease)
    assert living.count("user:1") == 2
    assert living.store.processes.seen == 1
    living.beat()
    assert living.store.processes.seen == 2


def test_a_buried_uid_never_returns(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    """It wakes up and takes connections, old idents and new, before it has beaten."""
    paused, living = make_site(), make_site()
    paused.take("user:1", 2)
    old = paused.leases.uid
    living.beat(2)
    go_on(clock, 21, living)
    paused.take("user:1")  # announced, as far as it knows
    paused.take("user:2")
    assert paused.leases.lost
    assert old not in redis.zrange("dt:{p}:live", 0, -1)
    paused.reconciler.resend()  # at the latest half a second later
    assert (living.count("user:1"), living.count("user:2")) == (3, 1)
    assert paused.leases.uid in redis.zrange("dt:{p}:live", 0, -1)
    assert not [key for key in keys(redis) if old in key]


def test_a_call_under_way_while_the_uid_changes(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    site = make_site()
    site.take("user:1")
    old, hold = site.leases.uid, site.leases.hold

    def late(*args: Any, **options: Any) -> None:
        redis.flushall()
        site.beat()
        hold(*args, **options)

    site.leases.hold = late  # type: ignore[method-assign]
    site.take("user:1")
    site.leases.hold = hold  # type: ignore[method-assign]
    site.reconciler.resend()
    assert site.count("user:1") == 2
    assert not [key for key in keys(redis) if old in key]


def test_emptied_redis_knows_everything_again_after_one_beat(make_site: Make, redis: Redis) -> None:
    one, two = make_site(), make_site()
    leases = [decision.lease for decision in one.take("user:1", 2)]
    two.take("user:1", 3)
    one.take("user:2", 700)
    for number in range(600):
        two.take(f"user:{number + 10}")
    redis.flushall()
    assert one.count("user:1") == 0
    one.beat()
    two.beat()
    assert [two.count(ident) for ident in ("user:1", "user:2", "user:609")] == [5, 700, 1]
    assert one.store.processes.seen == 1 and two.store.processes.seen == 2
    one.beat()
    two.beat()
    assert two.count("user:1") == 5
    for lease in leases:
        one.limiter.release(lease)
    assert two.count("user:1") == 3
