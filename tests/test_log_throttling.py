"""One line about a subject in a while; the others are counted, and numbers told when the subject rests."""

from __future__ import annotations

import pytest

from django_throttle import log_throttling
from django_throttle.log_throttling import LogThrottle
from tests.clock import FrozenClock


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
