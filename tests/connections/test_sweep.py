"""A sweep takes its share of a turn, loses nothing on the way, and nobody who lives is swept."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_throttle.conf import Conf
from django_throttle.connections import processes
from django_throttle.connections.processes import CLAIM_SECONDS, Sweeper
from django_throttle.exceptions import Cause, StoreError
from django_throttle.management.commands import refresh_connections
from django_throttle.management.commands.refresh_connections import HostRefresher
from tests.clock import FrozenClock
from tests.connections.conftest import BATCHING, Site, go_on, keys

Make = Callable[..., Site]
pytestmark = pytest.mark.usefixtures("steady_at_the_second_beat")


def test_by_default_slots_are_free_within_half_a_minute() -> None:
    """As the documentation says: silence, the beat that notices, and time to sweep."""
    defaults = Conf()
    assert defaults.PROCESS_TTL + defaults.BEAT_INTERVAL + CLAIM_SECONDS <= 30
    assert defaults.PROCESS_TTL >= 3 * defaults.BEAT_INTERVAL, "a beat or two may be lost"


class TestShare:
    @pytest.fixture
    def graves(self, make_site: Make, monkeypatch: pytest.MonkeyPatch) -> list[Site]:
        """Two dead processes that held twenty leases each, two batches of it."""
        for module in BATCHING:
            monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)
        dead = [make_site(), make_site()]
        for site in dead:
            for number in range(20):
                site.take(f"user:{number}")
        return dead

    def test_a_turn_ends_and_the_next_one_goes_on(
        self, make_site: Make, graves: list[Site], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever there is to sweep, a beat is over soon, and orders and rules are asked for between turns."""
        monkeypatch.setattr(processes, "SHARE_SECONDS", 0.0)
        monkeypatch.setattr(Sweeper.go_on, "__defaults__", (0.0,))
        living = make_site()
        living.beat()
        living.reconciler.records.beat((), [site.leases.uid for site in graves], expires=False, most=0)

        def left() -> int:
            return sum(living.count(f"user:{number}") for number in range(20))

        counts = [left()]
        living.beat()
        counts.append(left())
        for _ in range(6):
            living.reconciler.resend()
            counts.append(left())
        print(f"left after each turn: {counts}")
        assert counts[:5] == [40, 30, 20, 10, 0]
        assert make_site().reconciler.records.beat(()).dead == 0

    def test_no_claim_ends_while_another_one_is_swept(
        self, make_site: Make, graves: list[Site], clock: FrozenClock
    ) -> None:
        living, other = make_site(), make_site()
        records = living.reconciler.records
        own = Sweeper(records)
        own.take_on(records.beat((), [site.leases.uid for site in graves]).claimed)
        for _ in range(4):
            clock.step(CLAIM_SECONDS * 0.6)  # as long as two batches may take
            own.go_on(0.0)
            assert other.reconciler.records.beat(()).claimed == []

    def test_what_failed_is_left_to_whoever_claims_it_next(
        self, make_site: Make, graves: list[Site], clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        living = make_site()
        records = living.reconciler.records
        own, uids = Sweeper(records), [site.leases.uid for site in graves]
        own.take_on(records.beat((), uids).claimed)
        with monkeypatch.context() as broken:
            broken.setattr(living.store, "pipeline", _away)
            with pytest.raises(StoreError):
                own.go_on()
        own.take_on(uids)  # claimed again, as one of them is by then
        assert own.go_on() == 40

    def test_the_command_is_done_when_it_has_made_its_only_pass(
        self, make_site: Make, graves: list[Site], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Sweeper.go_on, "__defaults__", (0.0,))
        command = HostRefresher(make_site().store)
        command.records.beat((), [site.leases.uid for site in graves], expires=False, most=0)
        assert command.once().freed == 40


class TestOnce:
    """``refresh_connections --once``, by cron on another host."""

    @pytest.fixture
    def command(self, make_site: Make, monkeypatch: pytest.MonkeyPatch) -> HostRefresher:
        monkeypatch.setattr("django_throttle.connections.process_identity.host", lambda: "another/1/2")
        return HostRefresher(make_site().store)

    @pytest.mark.parametrize("seconds", [19, 25, 3600])
    def test_after_an_outage_nobody_who_lives_is_buried(
        self, seconds: int, make_site: Make, clock: FrozenClock, command: HostRefresher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody could beat for so long, and the command is there before anyone else."""
        living = make_site()
        living.take("user:1", 2)
        clock.step(2)
        uid = living.leases.uid
        clock.step(seconds)
        monkeypatch.setattr(
            refresh_connections, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: living.beat())
        )
        assert command.once()[:4] == (1, 0, 2, 0)
        assert living.count("user:1") == 2
        living.beat()
        assert living.leases.uid == uid

    def test_who_is_silent_while_another_beats_is_swept(
        self, make_site: Make, clock: FrozenClock, command: HostRefresher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        living, dead = make_site(), make_site()
        for site in (living, dead):
            site.take("user:1", 2)
        clock.step(19)
        living.beat()
        clock.step(2)
        waited: list[float] = []
        monkeypatch.setattr(refresh_connections, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited.append))
        assert command.once()[:4] == (1, 1, 2, 2)
        assert (living.count("user:1"), len(waited)) == (2, 1)

    def test_where_nobody_is_silent_it_does_not_wait(
        self, make_site: Make, command: HostRefresher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_site().take("user:1", 2)
        monkeypatch.setattr(
            refresh_connections,
            "time",
            SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: pytest.fail("it waits")),
        )
        assert command.once().alive == 1

    def test_it_waits_longer_than_a_beat(self) -> None:
        assert processes.BEATS > 1


def test_a_pass_that_failed_at_its_first_question_begins_anew(
    make_site: Make, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was away for less than a silence, so that others have not come back yet."""
    silent, command = make_site(), HostRefresher(make_site().store)
    silent.take("user:1")
    monkeypatch.setattr("django_throttle.connections.process_identity.host", lambda: "another/1/2")
    for _ in range(2):
        command.refresh()
    with monkeypatch.context() as broken:
        broken.setattr(command.records.store.transport, "send_all", _away)
        with pytest.raises(StoreError):
            command.refresh()
    clock.step(21)
    command.refresh()
    assert silent.count("user:1") == 1


def _away(*_: Any) -> None:
    raise StoreError(Cause.UNAVAILABLE)


def test_the_agent_s_thread_is_free_after_its_share(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes long here; one turn has no more of them than fit in its share, and one."""
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)
    dead, living = make_site(), make_site()
    for number in range(60):
        dead.take(f"user:{number}")
    now = [0.0]
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pipeline = living.store.pipeline

    def slow(calls: Any) -> Any:
        now[0] += 0.2 * (calls[0][0] == "reap")
        return pipeline(calls)

    monkeypatch.setattr(living.store, "pipeline", slow)
    living.reconciler.sweeper.take_on(living.reconciler.records.beat((), [dead.leases.uid]).claimed)
    turns: list[float] = []
    while living.count("user:0") + living.count("user:59") or not turns or turns[-1]:
        before = now[0]
        living.reconciler.resend()
        turns.append(round(now[0] - before, 1))
    assert max(turns) <= processes.SHARE_SECONDS + 0.2
    assert sum(turns) == pytest.approx(1.2)


def test_two_sweep_at_once(make_site: Make, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, one, two = make_site(), make_site(), make_site()
    for number in range(40):
        dead.take(f"user:{number}", 2)
    one.take("user:1")
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)
    pipeline = one.store.pipeline

    def meddle(calls: Any) -> Any:
        sum(two.reconciler.records.sweep(dead.leases.uid))
        return pipeline(calls)

    monkeypatch.setattr(one.store, "pipeline", meddle)
    one.beat(2)
    go_on(clock, 21, one)
    assert [one.count(f"user:{number}") for number in (0, 1, 39)] == [0, 1, 0]


def test_a_sweeper_that_dies_leaves_its_work_to_the_next(
    make_site: Make, clock: FrozenClock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, dying, next_one = make_site(), make_site(), make_site()
    for number in range(40):
        dead.take(f"user:{number}")
    for module in BATCHING:
        monkeypatch.setattr(f"django_throttle.{module}.BATCH", 10)
    pipeline, passed = dying.store.pipeline, []

    def once(calls: Any) -> Any:
        if calls[0][0] == "reap":
            passed.append(calls)
            if len(passed) > 1:
                raise StoreError(Cause.UNAVAILABLE)
        return pipeline(calls)

    monkeypatch.setattr(dying.store, "pipeline", once)
    dying.beat(2)
    next_one.beat(2)
    redis.zincrby("dt:{p}:live", -30_000_000, dead.leases.uid)
    with pytest.raises(StoreError):
        dying.beat()
    left = redis.scard(f"dt:{{p}}:held:{dead.leases.uid}")
    assert 0 < left < 40
    next_one.beat()
    assert redis.scard(f"dt:{{p}}:held:{dead.leases.uid}") == left, "the claim holds for a while"
    clock.step(3.1)
    next_one.beat()
    assert sum(next_one.count(f"user:{number}") for number in range(40)) == 0
    assert not [key for key in keys(redis) if dead.leases.uid in key]


def test_a_dead_process_is_handed_to_one_sweeper_at_a_time(make_site: Make, clock: FrozenClock) -> None:
    dead, one, two = make_site(), make_site(), make_site()
    dead.take("user:1")
    uid = dead.leases.uid
    assert one.reconciler.records.beat((), [uid]).claimed == [uid]
    assert two.reconciler.records.beat((), [uid]).claimed == []
    clock.step(-3600)  # a claim from the future is one from before the clock went back
    assert two.reconciler.records.beat(()).claimed == [uid]
    clock.step(3)
    assert one.reconciler.records.beat(()).claimed == [uid]
