"""What was refused a moment ago is refused again without asking Redis."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Charge, Charges, charges_of
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.refusal_cache import (
    MAX_CACHED_SECONDS,
    MAX_CACHED_SLOT_SECONDS,
    MAX_REFUSALS,
    MIN_SLOT_REFUSALS,
    RefusalCache,
)
from tests.stores.conftest import evaluations

RULE = Rule("api", "2/hour")
CAP = Rule("cap", limit=2, algorithm="concurrency")
FULL = Decision(allowed=False, retry_after=5.0)


REFUSED = Decision(allowed=False, retry_after=10.0, reset_after=20.0, rule="api")


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def refusal_cache(now: list[float]) -> RefusalCache:
    return RefusalCache(lambda: now[0])


def test_a_flood_of_refused_calls_asks_redis_once(acquire: Callable[..., Any], client: Redis) -> None:
    while acquire(RULE).allowed:
        pass
    before, began = evaluations(client), time.monotonic()
    assert not any(acquire(RULE).allowed for _ in range(200))
    assert evaluations(client) - before <= 1 + (time.monotonic() - began) // MAX_CACHED_SECONDS


def test_a_peek_asks_redis(store: RedisStore, redis_url: str) -> None:
    here, elsewhere = Limiter([RULE], store), Limiter([RULE], RedisStore(redis_url, deadline=5.0))
    while here.acquire("user:1").allowed:
        pass
    elsewhere.reset("user:1")
    assert not here.acquire("user:1").allowed
    assert here.peek("user:1").allowed


@pytest.mark.parametrize(("retry", "lasts"), [(0.25, 0.25), (10.0, MAX_CACHED_SECONDS), (None, MAX_CACHED_SECONDS)])
def test_it_lasts_until_the_call_could_pass_and_no_longer_than_a_second(
    retry: float | None, lasts: float, refusal_cache: RefusalCache, now: list[float]
) -> None:
    charges = charges_of(RULE, "user:1", 1)
    refusal_cache.note(charges, REFUSED._replace(retry_after=retry), 0)
    now[0] += lasts / 2
    found = refusal_cache.find(charges)
    assert found is not None and found.reset_after == 20.0 - lasts / 2
    assert found.retry_after == (retry and retry - lasts / 2)
    now[0] += lasts / 2 - 0.001
    assert refusal_cache.find(charges) is not None
    now[0] += 0.001
    assert refusal_cache.find(charges) is None


@pytest.mark.parametrize(
    ("rule", "decision", "times"),
    [
        (RULE, Decision(allowed=True), 1), (RULE, REFUSED._replace(degraded=True), 1),
        (Rule("login", "2/hour", count_denied=True), REFUSED, 1),
        (Rule("watch", "2/hour", action="shadow"), REFUSED, 1), (CAP, FULL, 1),
        (replace(CAP, at_limit="evict_oldest"), FULL, 2 * MIN_SLOT_REFUSALS),
    ],
    ids=["allowed", "without the store", "counts denied", "shadow", "slots", "slots that newcomers get"],
)  # fmt: skip
def test_only_refusals_by_rates_that_charge_nothing_are_remembered(
    rule: Rule, decision: Decision, times: int, refusal_cache: RefusalCache
) -> None:
    charges = charges_of(rule, "user:1", 1)
    for _ in range(times):
        refusal_cache.note(charges, decision, 0)
        assert refusal_cache.find(charges) is None


def test_who_insists_while_all_slots_are_taken_is_refused_for_a_moment_without_asking(
    refusal_cache: RefusalCache, now: list[float]
) -> None:
    charges = charges_of(CAP, "user:1", 1)
    for _ in range(MIN_SLOT_REFUSALS - 1):
        refusal_cache.note(charges, FULL, 0)
        assert refusal_cache.find(charges) is None
        now[0] += 0.99
    refusal_cache.note(charges, FULL, 0)
    now[0] += MAX_CACHED_SLOT_SECONDS - 0.001
    assert refusal_cache.find(charges) is not None
    now[0] += 0.002
    assert refusal_cache.find(charges) is None
    refusal_cache.note(charges, FULL, 0)
    assert refusal_cache.find(charges) is not None
    now[0] += 1.2
    refusal_cache.note(charges, FULL, 0)
    assert refusal_cache.find(charges) is None


def test_a_refusal_by_a_rate_is_remembered_at_once_also_beside_slots(refusal_cache: RefusalCache) -> None:
    limiter = Limiter([RULE, CAP], MemoryStore())
    *_, refused = [limiter.acquire("user:1") for _ in range(3)]
    charges = Charges.of((Charge(RULE, "user:1", 1), Charge(CAP, "user:1", 1)))
    refusal_cache.note(charges, refused, 0)
    assert refusal_cache.find(charges) is not None


def test_another_cost_another_ident_and_an_edited_rule_are_asked_for(refusal_cache: RefusalCache) -> None:
    refusal_cache.note(charges_of(RULE, "user:1", 2), REFUSED, 0)
    for rule, ident, cost in [(RULE, "user:1", 1), (RULE, "user:2", 2), (Rule("api", "3/hour"), "user:1", 2)]:
        assert refusal_cache.find(charges_of(rule, ident, cost)) is None


def test_what_was_asked_before_a_budget_was_given_back_is_not_remembered(refusal_cache: RefusalCache) -> None:
    charges, epoch = charges_of(RULE, "user:1", 1), refusal_cache.epoch
    refusal_cache.clear()
    refusal_cache.note(charges, REFUSED, epoch)
    assert refusal_cache.find(charges) is None
    refusal_cache.note(charges, REFUSED, refusal_cache.epoch)
    assert refusal_cache.find(charges) is not None


@pytest.mark.row("A20")
def test_it_is_bounded() -> None:
    refusal_cache = RefusalCache()
    for number in range(MAX_REFUSALS + 5):
        refusal_cache.note(charges_of(RULE, f"user:{number}", 1), Decision(allowed=False, retry_after=10.0), 0)
    assert refusal_cache.find(charges_of(RULE, "user:0", 1)) is None
    assert refusal_cache.find(charges_of(RULE, f"user:{MAX_REFUSALS + 4}", 1)) is not None
    assert len(refusal_cache.refusals) == MAX_REFUSALS
