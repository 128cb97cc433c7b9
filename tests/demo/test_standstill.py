"""Time for which the machine stood still is noticed, so that a bound of time can leave it out."""

from __future__ import annotations

import pytest

from testproject.check.standstill import EVERY, STILL, Watch
from tests.clock import FrozenClock


@pytest.fixture
def watch(clock: FrozenClock) -> Watch:
    """One that looks when it is told to, at a clock that goes when it is told to."""
    return Watch(clock)


def test_a_late_turn_is_a_standstill(watch: Watch, clock: FrozenClock) -> None:
    began = clock()
    for gap in (EVERY, EVERY + STILL, 0.3, EVERY):
        clock.step(gap)
        watch.look()
    assert watch.still_since(began) == pytest.approx(0.3)


def test_only_what_comes_after_the_moment_counts(watch: Watch, clock: FrozenClock) -> None:
    clock.step(0.2)
    watch.look()
    middle = clock()
    clock.step(0.3)
    watch.look()
    assert watch.still_since(middle - 0.1) == pytest.approx(0.4)
    assert watch.still_since(middle) == pytest.approx(0.3)
    assert watch.still_since(clock()) == 0
