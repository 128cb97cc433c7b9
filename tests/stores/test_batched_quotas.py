"""Quotas that are charged in batches: what passes is charged once, warned of once, and held soon."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from django_throttle import limiter as doors
from django_throttle import signals
from django_throttle.call_facts import Facts
from django_throttle.core import Reason, Rule
from django_throttle.core.commands import Answer, Charge
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.local_limits import IDLE, MOST, BatchedQuotas, flush
from django_throttle.stores import MemoryStore, RedisStore
from tests.callers import SameByEveryKey
from tests.clock import FrozenClock
from tests.servers import RedisServer

HOUR = Rule("hourly", "1000/hour", algorithm="fixed_window", batched=True)
MONTH = Rule(
    "monthly", "1000/month", algorithm="fixed_window", timezone="UTC", batched=True, warn_at=(0.8, 1), enforce_at=2.5
)
DAMPER = Rule("account", "100/s", algorithm="damper")
Store = MemoryStore | RedisStore


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Store:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


def report(store: Store) -> int:
    return flush(store.local_limits, store.aggregator if isinstance(store, RedisStore) else store)


def charged(store: Store, rule: Rule) -> int:
    """What the store has counted, as a rule sees it that asks for each call."""
    exact = Rule(rule.name, rule.rate, algorithm=rule.algorithm, timezone=rule.timezone)
    assert exact.id == rule.id
    decision = Limiter([exact], store).peek("user:1")
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining


def test_what_passes_is_charged_a_little_later(store: Store) -> None:
    limiter = Limiter([HOUR], store)
    told = [limiter.acquire("user:1", 5).remaining for _ in range(20)]
    assert told == list(range(1000, 900, -5)), "as far as this process knows"
    assert charged(store, HOUR) == 0
    assert report(store) == 1 and charged(store, HOUR) == 100
    assert report(store) == 0, "and only once"


def test_no_call_asks_redis(redis_server: RedisServer, redis_url: str) -> None:
    limiter = Limiter([HOUR, DAMPER], RedisStore(redis_url))
    with redis_server.client() as client:
        before = client.info("stats")["total_commands_processed"]
        for _ in range(50):
            limiter.acquire("user:1")
        limiter.peek("user:1")
        assert client.info("stats")["total_commands_processed"] - before == 1, "which is the question itself"


def test_what_is_used_up_is_refused_until_the_window_ends(store: Store, clock: FrozenClock) -> None:
    clock.to(1800)
    limiter = Limiter([HOUR], store)
    assert limiter.acquire("user:1", 990).allowed
    report(store)
    assert limiter.acquire("user:1", 10).allowed
    refused = limiter.acquire("user:1")
    assert not refused.allowed and refused.outcomes[0].reason is Reason.EXCEEDED
    assert refused.retry_after == pytest.approx(1800) and refused.remaining == 0
    clock.to(3600)
    assert limiter.acquire("user:1").allowed
    report(store)
    assert charged(store, HOUR) == 11, "the last ten belong to where they were told"


def test_what_never_fits_is_too_costly(store: Store) -> None:
    decision = Limiter([HOUR], store).acquire("user:1", 1001)
    assert decision.retry_after is None and decision.outcomes[0].reason is Reason.TOO_COSTLY


def test_what_others_use_is_known_after_a_report(redis_url: str, clock: FrozenClock) -> None:
    stores = [RedisStore(redis_url, clock=clock, deadline=5.0) for _ in range(2)]
    here, there = (Limiter([HOUR], store) for store in stores)
    for limiter, store in zip((here, there), stores, strict=True):
        assert limiter.acquire("user:1", 700).allowed
        report(store)
    assert not there.acquire("user:1").allowed, "1,400 of 1,000: what was let through meanwhile is charged too"
    assert here.acquire("user:1").allowed, "not heard of yet"
    report(stores[0])
    assert not here.acquire("user:1").allowed


def test_a_quota_that_is_given_back_is_heard_of(redis_url: str, clock: FrozenClock) -> None:
    stores = [RedisStore(redis_url, clock=clock, deadline=5.0) for _ in range(2)]
    here, there = (Limiter([HOUR], store) for store in stores)
    for limiter, store in zip((here, there), stores, strict=True):
        limiter.acquire("user:1", 1000)
        report(store)
    assert here.reset("user:1") == 1
    assert here.acquire("user:1").allowed
    report(stores[1])
    assert there.acquire("user:1").allowed


def test_what_a_damper_refuses_is_not_charged(store: Store, clock: FrozenClock) -> None:
    limiter = Limiter([HOUR, DAMPER, Rule("calls", "150/day", algorithm="fixed_window")], store)
    passed = sum(limiter.acquire("user:1").allowed for _ in range(200))
    assert passed == 90, "what the local limiter lets through at once"
    clock.step(1)
    passed += sum(limiter.acquire("user:1").allowed for _ in range(90))
    assert passed == 150, "and what the exact rule lets through"
    report(store)
    assert charged(store, HOUR) == 150


def test_a_peek_owes_nothing(store: Store) -> None:
    limiter = Limiter([HOUR], store)
    assert limiter.peek("user:1", 7).remaining == 1000
    assert report(store) == 0


def test_a_quota_is_tolerated_and_warned_of_once(store: Store, clock: FrozenClock) -> None:
    limiter = Limiter([MONTH], store)
    shares = []
    for _ in range(30):
        decision = limiter.acquire("user:1", 100)
        shares += [crossing.share for crossing in decision.crossed]
        report(store)
        clock.step(1)
    assert shares == [0.8, 1]
    assert charged(store, MONTH) == 1000 and not decision.allowed
    assert decision.limit == 1000 and decision.outcomes[0].remaining == 0


def test_receivers_are_told_at_the_next_call(settings: Any) -> None:
    rule = {"rate": "10/hour", "algorithm": "fixed_window", "batched": True, "warn_at": [0.5]}
    settings.DJANGO_THROTTLE = {"RULES": {"hourly": rule}, "DATABASE_RULES": False, "AGENT": False}
    told: list[float] = []

    def tell(facts: Facts, share: float, **_: Any) -> None:
        told.append(share)

    signals.quota_warning.connect(tell)
    try:
        facts = Facts("chat", ("request",), SameByEveryKey(), 6)
        doors.decide(facts)
        assert told == []
        report(doors.get_store())  # type: ignore[arg-type]
        doors.decide(Facts("chat", ("request",), SameByEveryKey(), 1))
    finally:
        signals.quota_warning.disconnect(tell)
    assert told == [0.5]


def charge(cost: int, ident: str = "u") -> Charge:
    return Charge(HOUR, ident, cost)


def test_what_may_have_been_charged_is_not_charged_again() -> None:
    quotas = BatchedQuotas()
    quotas.add(charge(5), 0.0)
    lost = quotas.collect(0.0)
    quotas.add(charge(7), 1.0)
    quotas.take(lost, [StoreError(Cause.UNAVAILABLE)], 1.0)
    (asked,) = quotas.collect(2.0)
    assert asked.charge.cost == 0, "first it is asked whether there is anybody"
    quotas.add(charge(1), 3.0)
    quotas.take([asked], [Answer(0, 995, 10_000_000)], 3.0)
    (paid,) = quotas.collect(4.0)
    assert paid.charge.cost == 8


def test_what_may_have_been_charged_counts_here_until_the_store_says_more() -> None:
    """Else a process lets a whole limit pass each time that a report fails."""
    quotas = BatchedQuotas()
    quotas.add(charge(1000), 0.0)
    quotas.take(quotas.collect(0.0), [StoreError(Cause.UNAVAILABLE)], 1.0)
    assert not quotas.look(charge(1), 2.0).allowed
    assert quotas.look(charge(1), 3602.0).allowed, "by then the window is over"
    (asked,) = quotas.collect(2.0)
    quotas.take([asked], [Answer(0, 995, 10_000_000)], 3.0)
    assert quotas.look(charge(1), 4.0).remaining == 995


def test_what_redis_refuses_to_charge_counts_here_and_is_charged_later(clock: FrozenClock) -> None:
    """Out of memory it answers who asks, and charges nobody: else a whole limit passes in every other report."""
    with RedisServer("--maxmemory-policy", "noeviction") as server, server.client() as admin:
        store = RedisStore(server.url, clock=clock, deadline=5.0)
        limiter = Limiter([HOUR], store)
        limiter.acquire("user:1", 100)
        report(store)
        admin.config_set("maxmemory", 1)
        passed = 100
        for _ in range(6):
            passed += sum(400 for _ in range(3) if limiter.acquire("user:1", 400).allowed)
            with suppress(StoreError):
                report(store)
        admin.config_set("maxmemory", 0)
        report(store)
        assert passed == charged(store, HOUR) == 900


def test_tabs_are_bounded_and_forgotten() -> None:
    quotas = BatchedQuotas()
    for number in range(MOST + 5):
        quotas.look(charge(1, f"u{number}"), 0.0)
    assert len(quotas) == MOST
    assert quotas.collect(IDLE + 1) == [] and len(quotas) == 0


def test_another_edition_of_the_rule_is_in_force_at_once() -> None:
    quotas = BatchedQuotas()
    quotas.add(charge(900), 0.0)
    assert not quotas.look(charge(200), 0.0).allowed
    larger = Rule("hourly", "2000/hour", algorithm="fixed_window", batched=True)
    assert quotas.look(Charge(larger, "u", 200), 0.0).remaining == 1100
