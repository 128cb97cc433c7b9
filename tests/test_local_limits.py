"""A process' own limits by the clock: who is refused how often, and what is reported when."""

from __future__ import annotations

import pytest

from django_throttle.local.limits import IDLE
from tests.clock import FrozenClock
from tests.damper.conftest import Away, Process, away, one_process
from tests.forks import holds_in_child

store = pytest.fixture(away)
process = pytest.fixture(one_process)


def test_what_all_processes_attempt_together_is_held_to_the_limit(clock: FrozenClock, store: Away) -> None:
    others = [Process(clock, store, seed=seed) for seed in range(4)]
    passed = [0] * 4
    for tick in range(30_000):  # 400 a second for 75 s
        clock.step(0.0025)
        process = others[tick % 4]
        if tick // 4 % 200 == 50 * (tick % 4):  # every two seconds, one after the other
            process.flush()
        passed[tick % 4] += process.attempt().allowed and tick >= 12_000
    assert sum(passed) / 45 == pytest.approx(100, rel=0.03)
    assert all(number / 45 == pytest.approx(25, rel=0.12) for number in passed)


def test_who_is_idle_is_not_reported_and_then_forgotten(process: Process, store: Away, clock: FrozenClock) -> None:
    process.run(3, 10)
    for _ in range(3):
        clock.step(2)
        process.flush()
    clock.step(2)
    process.flush()
    assert store.asked and len(process.limits.cache.meters) == 1
    store.asked = []
    process.flush()
    assert store.asked == []
    clock.step(IDLE)
    process.flush()
    assert len(process.limits.cache.meters) == 0 and store.asked == []


@pytest.mark.row("A20")
def test_meters_are_bounded_and_what_they_counted_is_told(clock: FrozenClock, store: Away) -> None:
    process = Process(clock, store)
    process.limits.cache.most = 10
    for number in range(25):
        process.attempt(f"u{number}")
    assert 8 <= len(process.limits.cache.meters) <= 10
    process.flush()
    told = [report for report in store.asked if report.counts]  # type: ignore[attr-defined]
    assert len(told) == 25, "also of those that had to go"


def test_many_others_end_no_suppression_and_empty_no_full_bucket(clock: FrozenClock, store: Away) -> None:
    process = Process(clock, store)
    process.limits.cache.most = 100
    process.run(10, 500)
    factor = process.factor
    while process.attempt("full").allowed:
        pass
    for number in range(1000):
        process.attempt(f"u{number}")
        clock.step(0.000_1)
    assert process.factor == factor > 0.7
    assert sum(process.attempt("full").allowed for _ in range(100)) <= 11, "what has drained in a tenth of a second"


@pytest.mark.usefixtures("servers")
def test_a_child_begins_with_nothing(process: Process, store: Away) -> None:
    process.run(1, 10)
    name = process.limits.cache.name

    def claim() -> bool:
        process.flush()
        cache = process.limits.cache
        return len(cache.meters) == 0 and store.asked == [] and cache.name != name

    assert holds_in_child(claim)
    process.flush()
    assert len(store.asked) == 1, "and its parent tells its own"
