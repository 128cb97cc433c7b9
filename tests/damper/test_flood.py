"""One meter by the clock: how much of a flood it lets through, and what follows a rest or an edit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_throttle.core import Reason, Rule
from django_throttle.damper.aggregate import SUB
from tests.clock import FrozenClock
from tests.damper.conftest import RULE, Away, Process


@pytest.mark.parametrize("times", [1.2, 20])
def test_one_process_alone_is_held_to_the_limit(clock: FrozenClock, store: Away, times: float) -> None:
    process = Process(clock, store)
    assert process.run(2, 100 * times) <= 150, "at once"
    process.run(18, 100 * times)
    assert 97 <= process.run(30, 100 * times) <= 103


def test_a_refusal_says_when_the_next_factor_comes(process: Process, clock: FrozenClock) -> None:
    process.run(4.5, 1000)
    process.flush()
    clock.step(0.5)
    refused = next(decision for _ in range(100) if not (decision := process.attempt()).allowed)
    (outcome,) = refused.outcomes
    assert outcome.reason is Reason.SUPPRESSED and 0.8 < outcome.factor < 1
    assert refused.retry_after is not None
    assert refused.retry_after == pytest.approx(1.5, abs=0.002), "or sooner, where the local limiter holds"
    assert (refused.limit, refused.remaining, refused.rule) == (100, 0, "account")


def test_who_comes_back_after_a_rest_is_not_suppressed(process: Process, clock: FrozenClock) -> None:
    process.run(20, 500)
    assert process.factor > 0.7
    clock.step(2 * SUB)
    assert process.factor == 0 and process.attempt().allowed


def test_another_limit_is_in_force_at_once(process: Process) -> None:
    process.run(20, 400)
    assert process.factor == pytest.approx(0.75, abs=0.02)
    process.rule = replace(RULE, rate="200/s", limit=None)
    assert process.rule.id == RULE.id
    assert process.factor == pytest.approx(0.5, abs=0.02)
    process.rule = replace(RULE, rate="60000/min", limit=None)
    assert process.factor == 0, "whatever the window"


def test_where_the_local_limiter_has_no_room_no_factor_makes_any(process: Process, clock: FrozenClock) -> None:
    process.rule = Rule("account", "20/min", algorithm="damper")
    while (decision := process.attempt()).allowed:
        clock.step(0.001)
    assert decision.retry_after == pytest.approx(3, abs=0.01), "a call's worth, though the factor comes in two"
