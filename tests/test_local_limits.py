"""A process' own limits by the clock: who is refused how often, and what is reported when."""

from __future__ import annotations

import pytest

from tests.clock import FrozenClock
from tests.damper.conftest import Away, Process, away

store = pytest.fixture(away)


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
