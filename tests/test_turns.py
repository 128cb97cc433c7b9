"""The moment that a queue has reserved for a call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from django_throttle import turns
from django_throttle.core import Decision, Rule
from django_throttle.core.decision import Outcome
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.turns import last_turn, position, turn_of

NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "wall_clock", lambda: NOW)


def decisions(number: int, now: float = NOW, **options: Any) -> list[Decision]:
    rule = Rule("queue", **({"rate": "1/min", "algorithm": "leaky_bucket", "action": "defer", "burst": 9} | options))
    limiter = Limiter([rule], MemoryStore(lambda: now))
    return [limiter.acquire("user:1") for _ in range(number)]


@pytest.mark.parametrize("action", [{"action": "defer"}, {"action": "delay", "max_delay": 600}])
def test_each_call_has_a_turn_of_its_own(action: Any) -> None:
    found = [last_turn(decision) for decision in decisions(3, **action)]
    assert found[0] is None, "the first may run at once"
    assert [round(turn.at - NOW) for turn in found[1:] if turn] == [60, 120]
    assert [round(turn.wait) for turn in found[1:] if turn] == [60, 120]


def test_nobody_waits_for_a_call_that_is_done_later() -> None:
    assert [(decision.delay, round(decision.outcomes[0].put_off)) for decision in decisions(2)] == [(0, 0), (0, 60)]


def test_of_several_turns_the_latest_counts() -> None:
    outcomes = tuple(Outcome("queue", "user:1", True, 1, 0, 0.0, 9.0, put_off=wait) for wait in (1.0, 3.0, 2.0))
    turn = last_turn(Decision(outcomes=outcomes))
    assert turn is not None
    assert turn.at == NOW + 3


@pytest.mark.parametrize("options", [{"allowed": False}, {"shadow": True}])
def test_what_is_refused_or_only_recorded_has_none(options: Any) -> None:
    outcome = Outcome("queue", "user:1", options.get("allowed", True), 1, 0, 0.0, 9.0, put_off=1.0)
    decision = Decision(options.get("allowed", True), outcomes=(outcome,))
    assert turn_of(decision, outcome._replace(shadow="shadow" in options)) is None


def test_the_moment_is_as_django_has_them(settings: Any) -> None:
    turn = turns.Turn("queue", "user:1", NOW)
    assert turn.moment == turn.run_after == datetime.fromtimestamp(NOW, UTC)
    settings.USE_TZ = False
    assert turn.run_after.tzinfo is None


def test_a_position_is_that_of_the_slowest_rate() -> None:
    rule = Rule("queue", rates=["10/s", "30/min"], algorithm="leaky_bucket", action="defer")
    assert [position(rule, wait) for wait in (0.0, 2.0, 2.1, 58.0, 90.0)] == [1, 1, 2, 29, 29]
    assert position(None, 60.0) is None
