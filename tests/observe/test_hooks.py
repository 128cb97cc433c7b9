"""Hooks hear of every decision, by a frozen report, and cost a call nothing that it would notice."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_throttle import limiter, observe
from django_throttle.limiter import adecide, decide
from django_throttle.observe import Report, hooks
from tests.clock import FrozenClock
from tests.inside import unsaid
from tests.observe.conftest import FACTS, decided
from tests.servers import slack

Enforce = Callable[..., None]
HERE = "tests.observe.test_hooks"
heard: list[Report] = []


def note(report: Report) -> None:
    heard.append(report)


class Note:
    """A hook that is made once, and called as often as there is something to tell."""

    made = 0

    def __init__(self) -> None:
        Note.made += 1

    def __call__(self, report: Report) -> None:
        heard.append(report)


def fail(report: Report) -> None:
    raise ZeroDivisionError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    unsaid(hooks, monkeypatch)


def test_every_decision_of_a_door_is_reported(enforce: Enforce) -> None:
    enforce(HOOKS=[f"{HERE}.note"])
    made = [decide(FACTS) for _ in range(3)]
    assert [report.decision for report in heard] == made
    assert [report.decision.allowed for report in heard] == [True, True, False]
    assert all(report.facts is FACTS and 0 < report.seconds < 5 for report in heard)


async def test_and_so_it_is_on_an_event_loop(enforce: Enforce) -> None:
    enforce(HOOKS=[f"{HERE}.note"])
    assert [(await adecide(FACTS)) for _ in range(3)] == [report.decision for report in heard]


def test_the_time_in_a_queue_is_not_counted(
    enforce: Enforce, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "perf_counter", clock)
    monkeypatch.setattr(limiter, "time", SimpleNamespace(sleep=clock.tick))
    enforce(HOOKS=[f"{HERE}.note"], rate="10/s", burst=2, algorithm="leaky_bucket", action="delay")
    decisions = [decide(FACTS) for _ in range(2)]
    assert clock.now_us > clock.start_us
    assert decisions[1].delay > 0.05
    assert [report.seconds for report in heard] == [0.0, 0.0]


def test_a_class_is_made_once(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Note, "made", 0)
    enforce(HOOKS=[f"{HERE}.Note"])
    for _ in range(3):
        decide(FACTS)
    assert (Note.made, len(heard)) == (1, 3)


def test_a_hook_that_fails_is_logged_once_and_stops_nobody(enforce: Enforce, caplog: pytest.LogCaptureFixture) -> None:
    enforce(HOOKS=[f"{HERE}.fail", f"{HERE}.note"])
    assert [decide(FACTS).allowed for _ in range(3)] == [True, True, False]
    assert len(heard) == 3
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        f"the hook {fail!r} failed: the call went on, its report is lost to this hook"
    ]


def test_a_hook_that_cannot_be_imported_is_left_out(enforce: Enforce, caplog: pytest.LogCaptureFixture) -> None:
    enforce(HOOKS=["nowhere.to.be.found", f"{HERE}.note"])
    assert [decide(FACTS).allowed for _ in range(2)] == [True, True]
    assert len(heard) == 2
    said = "the hook 'nowhere.to.be.found' cannot be imported and is ignored: correct HOOKS"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_report_cannot_be_changed() -> None:
    report = Report(FACTS, decided(True), 0.001)
    with pytest.raises(AttributeError):
        report.seconds = 0.0  # type: ignore[misc]


def microseconds(hook: list[str], settings: Any) -> float:
    """The least time of telling an ordinary decision of one rule, of many tries."""
    settings.DJANGO_THROTTLE = {"AGENT": False, "HOOKS": hook}
    decision = decided(True)
    calls = 500
    return min(timeit.repeat(lambda: observe.tell(FACTS, decision, 0.001), number=calls, repeat=40)) / calls * 1e6


def test_what_it_costs(settings: Any) -> None:
    off = microseconds([], settings)
    on = microseconds(["django_throttle.observe.prometheus.count"], settings)
    print(f"telling of a decision: {off:.2f} µs with no hook, {on:.2f} µs with Prometheus")
    if sys.gettrace() is None:  # measuring coverage is what takes the time otherwise
        assert off <= slack(1.0)
        assert on <= slack(3.0)
