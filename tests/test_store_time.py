"""The store's time as far as a process knows it, the periods of the calendar by it, and lines once in a while."""

from __future__ import annotations

import pytest

from django_throttle import log_throttling
from django_throttle.core import Rule
from django_throttle.core.algorithms.fixed_window import CalendarWindow
from django_throttle.local.store_time import STEP_US, Calendar, StoreTime, micros
from django_throttle.log_throttling import LogThrottle
from tests.clock import FrozenClock

SECOND = 1_000_000
DAY = 86_400 * SECOND
MONTHLY = Rule("quota", "9/month", algorithm="fixed_window")


def known(there: int, sent: float = 0.0, heard: float = 0.2) -> StoreTime:
    time = StoreTime()
    assert not time.learn(there, sent, heard), "the first answer is no step"
    return time


def test_a_quicker_answer_is_believed_more_and_a_slower_one_no_more() -> None:
    assert StoreTime().offset is None
    time = known(10 * SECOND)
    for there, sent, heard, offset in (
        (10, 0.0, 0.2, micros(0.1)),
        (11, 1.0, 1.02, micros(0.01)),
        (12, 2.0, 2.5, micros(0.01)),
    ):
        assert not time.learn(there * SECOND, sent, heard)
        assert time.offset == 10 * SECOND - offset, "half of the way there and back"


@pytest.mark.parametrize("step", [STEP_US + SECOND, -STEP_US - SECOND, STEP_US // 2])
def test_a_clock_that_was_set_is_noticed_and_followed_as_a_drift_is(step: int) -> None:
    time = known(10 * SECOND)
    assert time.learn(11 * SECOND + step, 1.0, 1.2) is (abs(step) > STEP_US)
    assert time.offset == 10 * SECOND + step - micros(0.1)
    assert not time.learn(12 * SECOND + step, 2.0, 2.2)


def test_bounds_are_unknown_until_the_time_is_and_hold_it_then() -> None:
    calendar, now = Calendar(), 1_750_000_000 * SECOND
    assert (calendar.plan(MONTHLY).start, calendar.plan(MONTHLY).middle, calendar.plan(MONTHLY).finish) == (0, 0, 0)
    calendar.learn(now)
    plan = calendar.plan(MONTHLY)
    assert plan.start <= now < plan.middle < plan.finish
    assert 28 * DAY <= plan.middle - plan.start <= 31 * DAY


def test_a_store_that_knows_its_time_has_the_bounds_of_it() -> None:
    calendar, now = Calendar(), 1_750_000_000 * SECOND
    first = calendar.plan_at(MONTHLY, now)
    assert isinstance(first, CalendarWindow)
    assert calendar.plan_at(MONTHLY, first.middle) == first, "of two periods, so that nothing is asked at their turn"
    later = calendar.plan_at(MONTHLY, first.finish)
    assert isinstance(later, CalendarWindow)
    assert later.start >= first.middle and later.start <= first.finish < later.finish


def test_one_line_a_minute_about_each_subject() -> None:
    clock = FrozenClock()
    throttle = LogThrottle(clock)
    assert [throttle.due(subject) for subject in ("one", "two", "one", "two")] == [True, True, False, False]
    clock.tick(59)
    assert not throttle.due("one")
    clock.tick(1)
    assert throttle.left_out("one") == 2
    assert throttle.overdue() == [(("two",), 1)]
    assert throttle.overdue() == []


def test_it_forgets_when_subjects_are_made_up_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_throttling, "MAX_SUBJECTS", 3)
    throttle, rules = LogThrottle(), [f"rule {number}" for number in range(4)] * 2
    assert [throttle.left_out(rule, "exceeded") for rule in rules] == [0] * 8
