"""Leases of a process are registered, extended and released, whatever Redis or a call has lost or evicted."""

import time

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from django_throttle.connections import reconcile
from django_throttle.local.leases import Leases, PendingRelease
from tests.clock import FrozenClock
from tests.connections.conftest import MakeSite, Site, go_on, keys, raise_away
from tests.connections.worker import RULE
from tests.servers import RedisServer


def test_a_release_that_did_not_arrive_is_repeated(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    lost, _ = site.take("user:1", 2)
    with monkeypatch.context() as patch:
        patch.setattr(site.store.transport, "send_all", raise_away)
        site.limiter.release(lost.lease)
    assert (site.count("user:1"), len(site.leases)) == (2, 1)
    for _ in range(2):
        site.reconciler.resend()
        assert site.count("user:1") == 1
    site.limiter.release(lost.lease)
    assert site.count("user:1") == 1


def keys_of(site: Site) -> tuple[str, str]:
    index = site.store.key(RULE.id, "user:1")
    return index, f"{index}:{site.leases.uid}"


@pytest.mark.row("F23")
def test_what_was_closed_since_an_old_copy_is_gone_within_two_beats(
    make_site: MakeSite, server: RedisServer, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis crashes and comes back without what it was told last; what is open counts all the time."""
    monkeypatch.setattr(reconcile, "GRACE_SECONDS", 0.0)
    site, ended, onlooker = (make_site(server.url) for _ in range(3))
    site.take("user:0", 2)
    closed = [site.take(f"user:{number % 50}")[0].lease for number in range(100)]
    ended.take("user:0")
    for each in (site, ended, onlooker):
        each.beat(2)
    copy = server.copy()
    ended.reconciler.release_all()
    for lease in closed:
        site.limiter.release(lease)
    site.take("late", 2)
    server.restart_from(copy)
    for each in (site, onlooker):
        each.store.transport.pool.close_idle()  # they broke with it
    assert [onlooker.count(ident) for ident in ("user:0", "user:1", "late")] == [5, 2, 0]
    go_on(clock, 21, site, onlooker)
    assert site.settle()
    assert [onlooker.count(ident) for ident in ("user:0", "user:1", "late")] == [2, 0, 2]
    sent: list[str] = []
    pipeline = site.store.pipeline
    monkeypatch.setattr(
        site.store, "pipeline", lambda calls: (sent.extend(call[0] for call in calls), pipeline(calls))[1]
    )
    assert site.settle()
    assert not {"register", "release", "extend"} & set(sent), "once"


def test_an_acquire_that_arrives_after_its_release(
    make_site: MakeSite, clock: FrozenClock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timed-out call may be carried out long after; nothing else would ever free what it took."""
    site = make_site()
    site.take("user:1")
    site.leases.release_uncertain(RULE.id, "user:1", "ghost", site.leases.uid)
    site.reconciler.resend()
    index, slots = keys_of(site)
    redis.zadd(slots, {"ghost": clock.now_us})
    for key in (index, slots):
        redis.pexpire(key, 600_000)
    site.reconciler.resend()
    assert site.count("user:1") == 2, "it may still be on its way to the registry"
    monkeypatch.setattr(reconcile, "GRACE_SECONDS", 0.0)
    site.reconciler.resend()
    assert site.count("user:1") == 2, "it came so late that it is too young to be told from one of ours"
    clock.step(11)
    for _ in range(2):
        site.reconciler.resend()
    assert site.count("user:1") == 1


def test_idle_announcements_are_taken_back_however_many(make_site: MakeSite, redis: Redis, small_batches: None) -> None:
    site = make_site()
    for number in range(25):
        (decision,) = site.take(f"user:{number}")
        site.limiter.release(decision.lease)
    site.take("user:0")
    held = f"dt:{{p}}:held:{site.leases.uid}"
    site.beat()
    assert redis.scard(held) == 25, "it may be taken again soon"
    site.beat()
    assert redis.smembers(held) == {site.store.key(RULE.id, "user:0")}
    site.take("user:7")
    assert redis.scard(held) == 2
    assert (site.count("user:0"), site.count("user:7")) == (1, 1)


def test_leaving_frees_everything_at_once(make_site: MakeSite, redis: Redis, small_batches: None) -> None:
    leaving, staying = make_site(), make_site()
    leaving.reconciler.release_all()
    assert keys(redis) == {}, "it had not come"
    for number in range(30):
        leaving.take(f"user:{number}", 2)
    staying.take("user:1")
    uid = leaving.leases.uid
    leaving.reconciler.release_all()
    assert [staying.count(f"user:{number}") for number in (0, 1, 29)] == [0, 1, 0]
    assert not [key for key in keys(redis) if uid in key]
    staying.beat()
    assert staying.store.processes.live_count == 1


@pytest.mark.row("F16")
def test_a_full_redis_still_beats_registers_and_releases(
    make_site: MakeSite, clock: FrozenClock, servers: None
) -> None:
    with RedisServer("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server, server.client() as redis:
        site = make_site(server.url)
        lease, _ = (decision.lease for decision in site.take("user:1", 2))
        size = 1_000_000
        while size > 100:
            try:
                redis.set(f"filler:{size}:{redis.dbsize()}", "x" * size)
            except OutOfMemoryError:
                size //= 2
        assert site.take("user:2")[0].degraded
        clock.step(1)
        site.beat()
        assert redis.zscore("dt:{p}:live", site.leases.uid) == clock.now_us
        site.limiter.release(lease)
        index, _ = keys_of(site)
        redis.delete(index)
        site.reconciler.extend()
        assert redis.smembers(index) == {site.leases.uid}
        site.leases.renew()
        site.beat()
        site.reconciler.resend()
        assert redis.zcard(f"{index}:{site.leases.uid}") == 1


@pytest.mark.row("F17")
@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-lfu"])
def test_what_was_evicted_is_registered_again_within_a_beat(policy: str, quick: None, servers: None) -> None:
    with RedisServer("--maxmemory", "6mb", "--maxmemory-policy", policy) as server, server.client() as redis:
        site = Site(server.url)
        names = [site.store.key(RULE.id, f"user:{number}") for number in range(600)]

        def count() -> int:
            return sum(redis.exists(name, f"{name}:{site.leases.uid}") == 2 for name in names)  # type: ignore[misc]

        for number in range(600):
            site.take(f"user:{number}")
        site.beat()
        site.take("newest")
        while redis.info("stats")["evicted_keys"] <= 200:
            with redis.pipeline(transaction=False) as pipeline:
                for page in range(50):
                    pipeline.rpush("pages", f"{page}" * 1000)
                pipeline.execute(raise_on_error=False)
        assert count() < 600
        redis.delete("pages")  # or it goes on
        assert site.settle()
        assert count() == 600


def test_an_evicted_announcement_is_made_again(make_site: MakeSite, clock: FrozenClock, redis: Redis) -> None:
    site = make_site()
    (decision,) = site.take("user:1")
    assert decision.lease is not None
    site.limiter.release(site.take("user:2")[0].lease)
    site.beat()
    held = f"dt:{{p}}:held:{site.leases.uid}"
    redis.delete(held)
    site.reconciler.check_all()
    site.reconciler.resend()
    assert redis.smembers(held) == {site.store.key(RULE.id, "user:1")}
    site.take("user:2")
    assert redis.scard(held) == 2
    redis.delete(*keys_of(site))
    site.leases.touch(RULE.id, "user:1", decision.lease.id, time.monotonic() - 60)
    site.reconciler.check_all()
    while site.reconciler.resend() is not None:
        pass
    assert site.count("user:1") == 1, "so is what it holds"
    assert redis.zscore(keys_of(site)[1], decision.lease.id) <= clock.now_us - 60_000_000, "and is silent for a minute"


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
    assert not site.leases.is_lost and site.leases.uid == uid
    assert site.count("user:1") == 1


PAIR, OTHER = (("rule", f"user:{number}") for number in (1, 2))


@pytest.fixture
def registry() -> Leases:
    """Redis knows this process, and that it may hold leases of the first pair."""
    registry = Leases()
    registry.confirm(registry.uid, 1, PAIR)
    return registry


def test_a_release_before_the_registration_arrives_is_owed_under_both_uids(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    old = registry.renew()
    registry.confirm(old, 1, OTHER)  # a reply to a call made before
    assert not registry.is_announced(*OTHER)
    owed = registry.release(*PAIR, "a")
    expected = {PendingRelease(uid, *PAIR, "a") for uid in (old, registry.uid)}
    assert set(owed) == set(registry.unconfirmed()) == expected
    assert registry.release(*PAIR, "a") == ()
    registry.confirm_released(*owed)
    assert registry.unconfirmed() == []


def test_a_release_while_the_registration_travels_is_owed_after_it(registry: Leases) -> None:
    registry.hold(*PAIR, "a", sent=False)
    ((pair, leases),) = registry.to_register(registry.take_unsent(10)).items()
    registry.release(*PAIR, "a")
    registry.registered(registry.uid, pair, leases)
    registry.confirm_released(PendingRelease(registry.uid, *PAIR, "a"))  # whichever of the two arrived first
    assert registry.unconfirmed() == [PendingRelease(registry.uid, *PAIR, "a", is_repeated=True)]


def test_a_lease_that_was_taken_under_a_former_uid_is_released_there_and_registered_again() -> None:
    leases, key = Leases(), ("rule", "user:1")
    former = leases.uid
    leases.renew()
    leases.hold(*key, "~a", former)
    assert leases.unconfirmed() == [PendingRelease(former, *key, "~a")]
    assert (leases.take_unsent(5), leases.take_unsent(5)) == ([key], [])
    leases.registered(former, key, {"~a": 0.0})
    assert leases.take_unsent(5) == [key]
    leases.registered(leases.uid, key, {"~a": 0.0})
    assert leases.take_unsent(5) == []
    leases.evict(*key, "~b")
    assert not leases.touch(*key, "~b", 1.0) and leases.touch(*key, "~a", 1.0)
