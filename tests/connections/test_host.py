"""One refresher keeps Redis true; here a process is a store, and a second takes no time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from django_throttle.connections import reconcile
from django_throttle.connections.control import Activity
from django_throttle.connections.processes import HostRefresher
from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide, DecideLocally
from django_throttle.exceptions import Cause, StoreError
from tests.clock import FrozenClock
from tests.connections.conftest import Site
from tests.connections.worker import RULE
from tests.servers import RedisServer

Make = Callable[..., Site]


@pytest.fixture(autouse=True)
def steady_at_the_second_beat(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "BEAT_INTERVAL": 0.0}


@pytest.fixture
def redis(redis_server: RedisServer) -> Any:
    with redis_server.client() as client:
        yield client


def go_on(clock: FrozenClock, seconds: float, *living: Site) -> None:
    """Time passes, in which these processes beat."""
    for _ in range(4):
        clock.step(seconds / 4)
        for site in living:
            site.beat()


def commands(redis: Redis) -> int:
    """Every command that Redis has carried out, those inside scripts included, save for asking this."""
    stats: dict[str, Any] = redis.info("commandstats")  # type: ignore[assignment]
    return sum(figures["calls"] for name, figures in stats.items() if name != "cmdstat_info")


def keys(redis: Redis) -> dict[str, int]:
    return {key: redis.pttl(key) for key in redis.scan_iter()}  # type: ignore[misc]


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
        site.refresher.leave()
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
        patch.setattr(living.store.transport, "send_all", _raise)
        with pytest.raises(StoreError):
            living.beat()
    clock.step(25)
    living.beat()
    assert living.count("user:1") == 1


def _raise(*_: Any) -> None:
    raise ConnectionError("away")


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
    paused.refresher.resend()  # at the latest half a second later
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
    site.refresher.resend()
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


def test_taken_and_released_while_redis_was_away(settings: Any, clock: FrozenClock) -> None:
    with RedisServer() as server:
        site, other = Site(server.url, clock), Site(server.url, clock)
        early, kept = site.take("user:1", 2)
        server.kill()
        late = site.take("user:1", 3)
        assert all(decision.allowed and decision.degraded for decision in late)
        site.limiter.release(early.lease)
        site.limiter.release(late[0].lease)
        with pytest.raises(StoreError):
            site.refresher.resend()
        server.start()
        site.beat()
        site.refresher.resend()
        assert other.count("user:1") == 3
        site.limiter.release(kept.lease)
        site.store.breaker.succeeded()
        for decision in late:
            site.limiter.release(decision.lease)
        site.refresher.resend()
        assert other.count("user:1") == 0
        assert len(site.leases) == 0


def test_what_comes_and_goes_while_redis_is_away_leaves_no_debt(settings: Any, clock: FrozenClock) -> None:
    with RedisServer() as server:
        site, other = Site(server.url, clock), Site(server.url, clock)
        (kept,) = site.take("user:0")
        server.kill()
        for number in range(200):
            (decision,) = site.take(f"user:{number}")
            site.limiter.release(decision.lease)
        assert len(site.leases.unconfirmed()) <= 20, "only those before the breaker opened"
        server.start()
        site.beat()
        site.refresher.resend()
        assert (site.leases.unconfirmed(), other.count("user:0"), other.count("user:1")) == ([], 1, 0)
        site.store.breaker.succeeded()
        site.limiter.release(kept.lease)
        assert other.count("user:0") == 0


def idle_rule() -> Any:
    return SimpleNamespace(rules=(Rule("sockets", limit=2, algorithm="concurrency", at_limit="evict_idle"),))


class TestOneNodeAway:
    """Of a Cluster: its errors stand in the place of replies, and what is on other nodes is kept up."""

    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("processes", "reconcile"):
            monkeypatch.setattr(f"django_throttle.connections.{module}.BATCH", 10)

    @pytest.fixture
    def away(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Site], pytest.MonkeyPatch]:
        def lose(site: Site) -> pytest.MonkeyPatch:
            """Every second identity is where nothing answers."""
            pipeline = site.store.pipeline
            lost = {site.store.key(RULE.id, f"user:{number}") for number in range(0, 60, 2)}

            def partial(calls: Any) -> list[Any]:
                replies = pipeline([call for call in calls if call[1][0] not in lost])
                return [ConnectionError("away") if call[1][0] in lost else replies.pop(0) for call in calls]

            monkeypatch.setattr(site.store, "pipeline", partial)
            monkeypatch.setattr(site.store.transport, "slot_of", len)
            return monkeypatch

        return lose

    def counts(self, site: Site) -> tuple[int, int]:
        """What is counted of those on the node that is away, and of the others."""
        found = [site.count(f"user:{number}") for number in range(60)]
        return sum(found[::2]), sum(found[1::2])

    def test_the_others_are_registered_and_released(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        leases = [site.take(f"user:{number}")[0].lease for number in range(60)]
        redis.flushall()
        site.leases.renew()
        partial = away(site)
        with pytest.raises(StoreError, match="away"):
            site.refresher.resend()
        assert self.counts(onlooker) == (0, 30)
        for lease in leases:
            assert lease
            for pair in lease.holds:
                site.leases.release(*pair, lease.id)
        with pytest.raises(StoreError, match="away"):
            site.refresher.resend()
        assert self.counts(onlooker) == (0, 0)
        partial.undo()
        site.refresher.resend()
        assert site.leases.unconfirmed() == []
        assert self.counts(onlooker) == (0, 0)

    def test_all_is_well_when_it_is_back(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        for number in range(60):
            site.take(f"user:{number}")
        redis.flushall()
        site.leases.renew()
        partial = away(site)
        with pytest.raises(StoreError, match="away"):
            site.refresher.resend()
        partial.undo()
        for module in ("processes", "reconcile"):
            partial.setattr(f"django_throttle.connections.{module}.BATCH", 10)
        site.refresher.resend()
        assert self.counts(onlooker) == (30, 30)

    def test_the_others_are_extended(self, make_site: Make, redis: Redis, away: Any) -> None:
        site = make_site()
        for number in range(60):
            site.take(f"user:{number}")
        names = [site.store.key(RULE.id, f"user:{number}") for number in range(60)]
        for name in names:
            redis.pexpire(name, 5000)
        away(site)
        with pytest.raises(StoreError, match="away"):
            site.refresher.extend()
        assert [redis.pttl(name) > 590_000 for name in names] == [False, True] * 30

    def test_the_others_are_extended_by_their_host(self, make_site: Make, redis: Redis, away: Any) -> None:
        site, onlooker = make_site(), make_site()
        for number in range(60):
            site.take(f"user:{number}")
        command = HostRefresher(onlooker.store)
        away(onlooker)
        assert command.refresh().extended == 30
        assert command.refresh().alive == 1

    def test_the_others_are_told_who_was_heard_of(
        self, make_site: Make, away: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, told = make_site(), list[str]()
        away(site)
        pipeline = site.store.pipeline
        monkeypatch.setattr(
            site.store, "pipeline", lambda calls: (told.extend(one[1][0] for one in calls), pipeline(calls))[1]
        )
        leases = [SimpleNamespace(id="~a", holds=[(idle_rule().rules[0].id, f"user:{number}")]) for number in range(60)]
        heard = SimpleNamespace(everyone=lambda: [SimpleNamespace(last_received=time.monotonic(), leases=leases)])
        activity: Any = Activity(site.store, heard)  # type: ignore[arg-type]
        monkeypatch.setattr("django_throttle.connections.control.rulebook.current", idle_rule)
        with pytest.raises(StoreError, match="away"):
            activity()
        assert len(told) == 60

    def test_the_others_are_swept(self, make_site: Make, clock: FrozenClock, away: Any) -> None:
        dead, living = make_site(), make_site()
        for number in range(60):
            dead.take(f"user:{number}")
        living.beat()
        partial, onlooker, turns = away(living), make_site(), 0
        living.refresher.records.beat((), [dead.leases.uid], expires=False, most=0)
        while self.counts(onlooker) != (30, 0) and turns < 100:  # a batch of those that fail ends a turn
            clock.step(3.1)
            turns += 1
            with suppress(StoreError):
                living.beat()
        assert self.counts(onlooker) == (30, 0)
        partial.undo()
        clock.step(3.1)
        living.beat()
        assert self.counts(onlooker) == (0, 0)


def test_a_release_that_did_not_arrive_is_repeated(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    one, _ = site.take("user:1", 2)
    with monkeypatch.context() as patch:
        patch.setattr(site.store.transport, "send_all", _raise)
        site.limiter.release(one.lease)
    assert (site.count("user:1"), len(site.leases)) == (2, 1)
    site.refresher.resend()
    assert site.count("user:1") == 1
    site.refresher.resend()
    site.limiter.release(one.lease)
    assert site.count("user:1") == 1


def test_released_twice_counts_once(make_site: Make) -> None:
    site, other = make_site(), make_site()
    one, *_ = site.take("user:1", 3)
    for _ in range(3):
        site.limiter.release(one.lease)
    other.limiter.release(one.lease)  # not its own
    assert site.count("user:1") == 2
    assert site.take("user:1")[0].allowed
    assert site.count("user:1") == 3


@pytest.mark.parametrize("held", [0, 1])
def test_a_close_that_redis_has_lost_is_told_again(
    held: int, make_site: Make, clock: FrozenClock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashed and came back without what it was told last; nobody is there whose keys would be extended."""
    site = make_site()
    site.take("user:1", held)
    site.beat(2)
    (closed,) = site.take("user:1")
    index = site.store.key(RULE.id, "user:1")
    saved = {key: redis.dump(key) for key in (index, f"{index}:{site.leases.uid}")}
    site.limiter.release(closed.lease)
    for key, dump in saved.items():
        redis.restore(key, 600_000, dump, replace=True)  # type: ignore[arg-type]
    assert site.count("user:1") == held + 1
    monkeypatch.setattr(reconcile, "GRACE_SECONDS", 0.0)
    clock.step(11)
    site.beat()
    for _ in range(2):
        site.refresher.resend()
    assert site.count("user:1") == held
    sent: list[str] = []
    pipeline = site.store.pipeline
    monkeypatch.setattr(
        site.store, "pipeline", lambda calls: (sent.extend(call[0] for call in calls), pipeline(calls))[1]
    )
    site.beat()
    site.refresher.resend()
    assert not {"register", "release", "extend"} & set(sent), "once"


@pytest.mark.parametrize("held", [0, 1])
def test_an_acquire_that_arrives_after_its_release(
    held: int, make_site: Make, clock: FrozenClock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timed-out call may be carried out long after; nothing else would ever free what it took."""
    site = make_site()
    site.take("user:1", held)
    site.leases.release_if_known(RULE.id, "user:1", "ghost", site.leases.uid)
    site.refresher.resend()
    index = site.store.key(RULE.id, "user:1")
    redis.zadd(f"{index}:{site.leases.uid}", {"ghost": clock.now_us})
    redis.pexpire(f"{index}:{site.leases.uid}", 600_000)
    redis.sadd(index, site.leases.uid)
    redis.pexpire(index, 600_000)
    assert site.count("user:1") == held + 1
    site.refresher.resend()
    assert site.count("user:1") == held + 1, "it may still be on its way to the registry"
    monkeypatch.setattr(reconcile, "GRACE_SECONDS", 0.0)
    site.refresher.resend()
    assert site.count("user:1") == held + 1, "it came so late that it is too young to be told from one of ours"
    clock.step(11)
    site.refresher.resend()
    site.refresher.resend()
    assert site.count("user:1") == held


def test_extends_everything_held_with_one_command_a_key(make_site: Make, redis: Redis) -> None:
    site = make_site()
    for number in range(600):
        site.take(f"user:{number}", 2)
    names = [site.store.key(RULE.id, f"user:{number}") for number in range(600)]
    names += [f"{name}:{site.leases.uid}" for name in names]
    for name in names:
        redis.pexpire(name, 5000)
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    site.refresher.extend()
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 600
    assert all(590_000 < redis.pttl(name) <= 600_000 for name in names)


def test_extending_finds_what_redis_has_lost(make_site: Make, redis: Redis) -> None:
    site = make_site()
    site.take("user:1", 2)
    site.take("user:2", 2)
    index = site.store.key(RULE.id, "user:1")
    redis.delete(index)  # evicted
    site.refresher.extend()
    assert site.count("user:1") == 2
    redis.delete(index, f"{index}:{site.leases.uid}")
    site.refresher.extend()
    site.refresher.resend()
    assert (site.count("user:1"), site.count("user:2")) == (2, 2)


def test_foreign_values_are_replaced(make_site: Make, redis: Redis) -> None:
    site = make_site()
    leases = [decision.lease for decision in site.take("user:1", 2)]
    index = site.store.key(RULE.id, "user:1")
    for key in (index, f"{index}:{site.leases.uid}"):
        redis.set(key, "foreign", px=60_000)
    site.refresher.extend()
    site.refresher.resend()
    assert site.count("user:1") == 2
    for key in (index, f"{index}:{site.leases.uid}"):
        redis.set(key, "foreign", px=60_000)
    for lease in leases:
        site.limiter.release(lease)
    sum(site.refresher.records.sweeping(site.leases.uid))
    assert site.count("user:1") == 0


def test_a_beat_costs_the_same_whatever_is_held(make_site: Make, redis: Redis) -> None:
    costs = {}
    for held in (10, 1000):
        redis.flushall()
        site = make_site()
        for number in range(held):
            site.take(f"user:{number}")
        site.beat(2)
        before = commands(redis)
        site.beat(10)
        site.refresher.resend()
        costs[held] = (commands(redis) - before) / 10
    print(f"Redis commands a beat, those in its script included: {costs}")
    assert costs[1000] == costs[10] <= 25


def test_idle_announcements_are_taken_back(make_site: Make, redis: Redis) -> None:
    site = make_site()
    for number in range(20):
        (decision,) = site.take(f"user:{number}")
        site.limiter.release(decision.lease)
    site.take("user:0")
    held = f"dt:{{p}}:held:{site.leases.uid}"
    assert redis.scard(held) == 20
    site.beat(2)
    assert redis.smembers(held) == {site.store.key(RULE.id, "user:0")}
    site.take("user:7")
    assert redis.scard(held) == 2


def test_every_key_expires(make_site: Make, clock: FrozenClock, redis: Redis) -> None:
    dead, site = make_site(), make_site()
    for one in (dead, site):
        one.take("user:1", 2)
        one.beat(2)
    ttls = keys(redis)
    assert len(ttls) == 9, "the bookkeeping, and of each process what it announced, what it holds and its mark"
    assert all(0 < ttl <= 600_000 for ttl in ttls.values()), ttls
    redis.zincrby("dt:{p}:live", -30_000_000, dead.leases.uid)
    site.refresher.records.beat([site.leases.uid], report=site.leases.report(), expires=True, most=0)
    assert "dt:{p}:dead" in keys(redis)
    assert all(0 < ttl <= 600_000 for ttl in keys(redis).values())
    for key in ttls:
        redis.pexpire(key, 1000)
    site.beat()
    for name in ("live", "meta", f"held:{site.leases.uid}"):
        assert redis.pttl(f"dt:{{p}}:{name}") > 590_000


def test_two_sweep_at_once(make_site: Make, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, one, two = make_site(), make_site(), make_site()
    for number in range(40):
        dead.take(f"user:{number}", 2)
    one.take("user:1")
    monkeypatch.setattr("django_throttle.connections.processes.BATCH", 10)
    pipeline = one.store.pipeline

    def meddle(calls: Any) -> Any:
        sum(two.refresher.records.sweeping(dead.leases.uid))
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
    monkeypatch.setattr("django_throttle.connections.processes.BATCH", 10)
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
    assert one.refresher.records.beat((), [uid]).claimed == [uid]
    assert two.refresher.records.beat((), [uid]).claimed == []
    clock.step(-3600)  # a claim from the future is one from before the clock went back
    assert two.refresher.records.beat(()).claimed == [uid]
    clock.step(3)
    assert one.refresher.records.beat(()).claimed == [uid]


def test_nothing_is_left_of_a_uid_that_redis_has_lost(make_site: Make, redis: Redis) -> None:
    site = make_site()
    for ident in ("user:1", "user:2"):
        (decision,) = site.take(ident)
    site.limiter.release(decision.lease)
    old = site.leases.uid
    redis.delete("dt:{p}:live")  # evicted, alone
    site.beat()
    assert site.count("user:1") == 1
    assert not [key for key in keys(redis) if old in key]
    assert redis.hkeys("dt:{p}:meta") == [site.leases.uid]


def test_leaving_frees_everything_at_once(make_site: Make, redis: Redis) -> None:
    leaving, staying = make_site(), make_site()
    for number in range(30):
        leaving.take(f"user:{number}", 2)
    staying.take("user:1")
    uid = leaving.leases.uid
    leaving.refresher.leave()
    assert [staying.count(f"user:{number}") for number in (0, 1)] == [0, 1]
    assert not [key for key in keys(redis) if uid in key]
    staying.beat()
    assert staying.store.processes.seen == 1


def test_leaving_without_having_come(make_site: Make, redis: Redis) -> None:
    make_site().refresher.leave()
    assert keys(redis) == {}


@pytest.mark.row("F16")
def test_a_full_redis_still_beats_registers_and_releases(clock: FrozenClock) -> None:
    with RedisServer("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server, server.client() as redis:
        site = Site(server.url, clock)
        one, _ = site.take("user:1", 2)
        size = 1_000_000
        while size > 100:
            try:
                redis.set(f"filler:{size}:{redis.dbsize()}", "x" * size)
            except Exception:  # noqa: BLE001
                size //= 2
        assert site.take("user:2")[0].degraded
        clock.step(1)
        site.beat()
        assert redis.zscore("dt:{p}:live", site.leases.uid) == clock.now_us
        site.limiter.release(one.lease)
        index = site.store.key(RULE.id, "user:1")
        redis.delete(index)
        site.refresher.extend()
        assert redis.smembers(index) == {site.leases.uid}
        site.leases.renew()
        site.beat()
        site.refresher.resend()
        assert redis.zcard(f"{index}:{site.leases.uid}") == 1


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
