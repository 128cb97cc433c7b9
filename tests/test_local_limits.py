"""A process' own limits by the clock: who is refused how often, and what is reported when."""

from __future__ import annotations

import pytest

from tests.clock import FrozenClock
from tests.damper.conftest import Away, Process, away, one_process
from tests.forks import holds_in_child

store = pytest.fixture(away)
process = pytest.fixture(one_process)


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
