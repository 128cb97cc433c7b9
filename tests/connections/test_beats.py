"""Processes beat, or a host does for them; the silent are swept, and who was only paused registers again."""

import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections import processes
from django_throttle.connections.processes import TURN_SECONDS
from django_throttle.exceptions import StoreError
from django_throttle.management.commands import refresh_connections
from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.clock import FrozenClock
from tests.connections.conftest import MakeSite, Site, go_on, keys, raise_away
from tests.connections.worker import RULE


def test_the_silent_is_swept_and_its_slots_are_free(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
    dead, living = make_site(), make_site()
    dead.take("user:1", 5)
    dead.take("user:2", 3)
    living.take("user:1", 2)
    living.beat(2)
    go_on(clock, 20, living)  # PROCESS_TTL
    assert (living.count("user:1"), living.store.processes.live_count) == (7, 2)
    clock.step(0.001)
    new = make_site()
    new.beat()
    assert living.count("user:1") == 7
    living.beat()
    assert (living.count("user:1"), living.count("user:2"), living.store.processes.live_count) == (2, 0, 2)
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
    paused, living = make_site(), make_site()
    first, *_ = paused.take("user:1", 3)
    old = paused.leases.uid
    living.beat(2)
    go_on(clock, 21, living)
    assert living.count("user:1") == 0
    paused.take("user:1")  # announced, as far as it knows
    paused.take("user:2")
    assert paused.leases.is_lost and old not in redis.zrange("dt:{p}:live", 0, -1)
    paused.reconciler.resend()  # at the latest half a second later
    assert (living.count("user:1"), living.count("user:2")) == (4, 1)
    assert paused.leases.uid != old and not [key for key in keys(redis) if old in key]
    paused.limiter.release(first.lease)
    living.beat()
    assert (living.count("user:1"), living.store.processes.live_count) == (3, 2)


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
    assert living.store.processes.live_count == 1, "the command counts as nobody"


def test_a_host_extends_and_vouches_for_who_does_not_beat_for_itself(
    make_site: MakeSite, clock: FrozenClock, redis: Redis
) -> None:
    quiet, command = make_site(), HostRefresher(make_site().store)
    quiet.take("user:1")
    index, uid = quiet.store.key(RULE.id, "user:1"), quiet.leases.uid
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
    for _ in range(10):
        clock.step(10)
        command.refresh()
    quiet.beat()
    assert (quiet.count("user:1"), quiet.leases.uid) == (1, uid)


@pytest.fixture
def graves(make_site: MakeSite, small_batches: None) -> list[Site]:
    dead = [make_site(), make_site()]
    for site in dead:
        for number in range(20):
            site.take(f"user:{number}")
    return dead


def held(site: Site) -> int:
    return sum(site.count(f"user:{number}") for number in range(20))


@pytest.mark.parametrize(("seconds", "left"), [(TURN_SECONDS + 0.1, [30, 20, 10, 0]), (TURN_SECONDS / 2, [10, 0])])
def test_a_turn_ends_and_the_next_one_goes_on(
    seconds: float, left: list[int], make_site: MakeSite, graves: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beats and rules are asked for between turns; one has as many batches as fit in its share, and one more."""
    living, onlooker, now = make_site(), make_site(), [0.0]
    living.beat()
    onlooker.reconciler.records.beat((), [site.leases.uid for site in graves], expires=False, max_claims=0)
    pipeline = living.store.pipeline

    def send(calls: Any) -> Any:
        now[0] += seconds * (calls[0][0] == "reap")
        return pipeline(calls)

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(living.store, "pipeline", send)
    living.beat()
    counts = [held(onlooker)]
    while counts[-1]:
        living.reconciler.resend()
        counts.append(held(onlooker))
    assert counts == left
    living.reconciler.resend()
    assert onlooker.reconciler.records.beat(()).dead == 0


@pytest.mark.parametrize("seconds", [21, 3600])
def test_once_after_an_outage_nobody_who_lives_is_buried(
    seconds: int, make_site: MakeSite, clock: FrozenClock, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--once`` by cron on another host: nobody could beat for so long, and it is there before anyone else."""
    living, command = make_site(), HostRefresher(make_site().store)
    living.take("user:1", 2)
    uid = living.leases.uid
    clock.step(seconds)
    waits = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: living.beat())
    monkeypatch.setattr(refresh_connections, "time", waits)
    assert command.once()[:4] == (1, 0, 2, 0)
    living.beat()
    assert (living.count("user:1"), living.leases.uid) == (2, uid)


def test_it_goes_on_through_an_outage_until_it_is_told_to_end(
    quick: None, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "REDIS": redis_url}
    go = HostRefresher._pass

    def go_and_end(*args: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return go(*args)

    turns = iter((go, raise_away, raise_away, go_and_end))
    monkeypatch.setattr(HostRefresher, "_pass", lambda *args: next(turns)(*args))  # noqa: PLW0108 (another each time)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        refresh_connections.Command().run_from_argv(["manage.py", "refresh_connections", "--interval", "0.05"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    first, away, back, last = [line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert first == last == "processes 0 alive, 0 dead; connections 0 held, 0 freed; keys 0 extended"
    assert away.startswith("Redis does not answer (") and away.endswith("; trying again every 0.05 s.")
    assert back == "Redis answers again."


def test_a_dead_process_is_handed_to_one_sweeper_at_a_time(make_site: MakeSite, clock: FrozenClock) -> None:
    dead, first, second = make_site(), make_site(), make_site()
    dead.take("user:1")
    uid = dead.leases.uid
    assert first.reconciler.records.beat((), [uid]).claimed == [uid]
    assert second.reconciler.records.beat((), [uid]).claimed == []
    clock.step(-3600)  # a claim from the future is one from before the clock went back
    assert second.reconciler.records.beat(()).claimed == [uid]
    clock.step(3)
    assert first.reconciler.records.beat(()).claimed == [uid]
