"""Hooks hear of every decision at no cost that a call would notice; the log has refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from django_throttle import observe
from django_throttle.call_facts import Facts
from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.limiter import decide
from django_throttle.observe import Report, reports
from tests.clock import FrozenClock
from tests.inside import unsaid
from tests.observe.conftest import FACTS, Somebody, decided

Enforce = Callable[..., None]
HERE = "tests.observe.test_reports"
heard: list[Report] = []


def note(report: Report) -> None:
    heard.append(report)


def fail(report: Report) -> None:
    raise ZeroDivisionError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    unsaid(reports, monkeypatch)


def test_hooks_hear_of_every_decision_though_others_fail(enforce: Enforce, caplog: pytest.LogCaptureFixture) -> None:
    enforce(HOOKS=["nowhere.to.be.found", f"{HERE}.fail", f"{HERE}.note"])
    made = [decide(FACTS) for _ in range(3)]
    assert [report.decision for report in heard] == made
    assert [decision.allowed for decision in made] == [True, True, False]
    assert all(report.facts is FACTS and 0 < report.seconds < 5 for report in heard)
    said = [record.getMessage() for record in caplog.records if "hook" in record.getMessage()]
    assert said == [
        "the hook 'nowhere.to.be.found' cannot be imported and is ignored: correct HOOKS",
        f"the hook {fail!r} failed: the call went on, its report is lost to this hook",
    ]


FIELDS = ("rule", "outcome", "reason", "scope", "event", "ident", "left_out")


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def test_a_refusal_is_a_line_with_fields(caplog: pytest.LogCaptureFixture, settings: object) -> None:
    observe.tell(FACTS, decided(True, False))
    (record,) = caplog.records
    ident = reports.ident_for_logs("user:somebody")
    assert (record.name, record.levelno) == ("django_throttle.decisions", logging.WARNING)
    assert record.getMessage() == (
        f"refused by rule 'two' (exceeded): scope 'any', event request, ident {ident}; "
        "left out since the last such line: 0"
    )
    assert [*fields(record).values()] == ["two", "refused", "exceeded", "any", "request", ident, 0]


@pytest.mark.parametrize("events", [("request", "inflight"), ("connect", "connection")])
def test_a_line_names_the_event_of_its_rule(
    caplog: pytest.LogCaptureFixture, enforce: Callable[..., None], events: tuple[str, str]
) -> None:
    rate, held = decided(False).outcomes[0]._replace(rule="rate", window=60.0), decided(False).outcomes[0]
    blocked = held._replace(rule="block", reason=Reason.BLOCKED)
    observe.tell(replace(FACTS, events=events), conclude((rate, held._replace(rule="held", window=None), blocked)))
    assert [fields(record)["event"] for record in caplog.records] == [events[0], events[1], events[0]]


def test_what_a_storm_left_out_is_told(caplog: pytest.LogCaptureFixture, clock: FrozenClock) -> None:
    for _ in range(100):
        observe.tell(FACTS, decided(False))
        clock.tick(0.09)  # 9 s in all
    observe.run_periodic_work()
    assert len(caplog.records) == 1, "not before the 10 s are over"
    clock.tick(1)
    observe.run_periodic_work()
    observe.run_periodic_work()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "rule 'one' (exceeded): left out 99 lines like the last"
    ]
    assert fields(caplog.records[1]) == {"rule": "one", "reason": "exceeded", "left_out": 99}
    clock.tick(9)
    observe.tell(FACTS, decided(False))
    assert len(caplog.records) == 2, "that was a line of this rule and reason, too"


def test_no_text_begins_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    evil = "any\nERROR all is lost\r\x1b[31m\u2028" + "x" * 1000
    refused = decided(False)
    outcome = refused.outcomes[0]._replace(rule=evil)
    observe.tell(Facts(evil, ("request",), Somebody()), refused._replace(outcomes=(outcome,)))
    formatter = logging.Formatter("%(levelname)s %(message)s %(scope)s %(rule)s %(event)s %(ident)s")
    text = formatter.format(caplog.records[0])
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert len(text) < 2000


def test_the_reference_of_a_refusal_is_the_ident_of_the_rule_that_a_client_is_told_of() -> None:
    def outcome(rule: str, ident: str, wait: float) -> Outcome:
        return Outcome(rule, ident, False, 1, 0, wait, wait, Reason.EXCEEDED)

    decision = conclude((outcome("a", "ip:192.0.2.1", 1.0), outcome("b", "user:42", 9.0)))
    assert reports.reference(decision) == reports.ident_for_logs("user:42")
    assert reports.reference(Decision(allowed=False)) == reports.reference(conclude((outcome("a", "", 1.0),))) == ""
