"""Hooks and receivers of signals hear of every decision, and make no call fail; the log has refusals."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction

from django_throttle import observe
from django_throttle.core.commands import Charges, DedupKey
from django_throttle.core.decision import Decision, Outcome, Reason, ThresholdReached, combine_outcomes
from django_throttle.costs.meter import Meter
from django_throttle.exceptions import Cause
from django_throttle.identity.call import Call
from django_throttle.limiter import decide
from django_throttle.observe import Report, recorders, reports
from django_throttle.signals import quota_warning, shadowed, store_failed, throttled
from tests.clock import FrozenClock
from tests.inside import unsaid
from tests.observe.conftest import CALL, decided

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
    made = [decide(CALL) for _ in range(3)]
    assert [report.decision for report in heard] == made
    assert [decision.allowed for decision in made] == [True, True, False]
    assert all(report.call is CALL and 0 < report.seconds < 5 for report in heard)
    said = [record.getMessage() for record in caplog.records if "hook" in record.getMessage()]
    assert said == [
        "the hook 'nowhere.to.be.found' cannot be imported and is ignored: correct HOOKS",
        f"the hook {fail!r} failed: the call went on, and its report is lost to this hook",
    ]


class Noted(observe.Recorder):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        self.calls.append((charges.idents, scope, events))

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        self.calls.append((decision.allowed, call.scope))

    def record_request(self, scope: str, meter: Meter) -> None:
        self.calls.append((scope, meter))


def test_each_recorder_gets_every_decision(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "current", None)
    enforce()
    decide(CALL)
    noted = [Noted() for _ in range(3)]
    for recorder in noted:
        observe.add_recorder(recorder)
    decide(CALL)
    assert not decide(CALL).allowed
    assert recorders.current is not None
    recorders.current.record_request("search", meter := Meter())
    passed = (("user:somebody",), CALL.scope, CALL.events)
    assert [each.calls for each in noted] == [[passed, (False, CALL.scope), ("search", meter)]] * 3


FIELDS = ("rule", "outcome", "reason", "scope", "event", "ident", "left_out")


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def test_a_refusal_is_a_line_with_fields(caplog: pytest.LogCaptureFixture, settings: object) -> None:
    observe.report(CALL, decided(True, False))
    (record,) = caplog.records
    ident = reports.ident_for_logs("user:somebody")
    assert (record.name, record.levelno) == ("django_throttle.decisions", logging.WARNING)
    assert record.getMessage() == (
        f"refused by rule 'two' (exceeded): scope 'any', event request, ident {ident}; "
        "left out since the last such line: 0"
    )
    assert [*fields(record).values()] == ["two", "refused", "exceeded", "any", "request", ident, 0]


@pytest.mark.parametrize("events", [("request", "inflight"), ("connect", "connection")])
def test_a_line_names_the_event_of_its_rule(caplog: Any, enforce: Callable[..., None], events: tuple[str, str]) -> None:
    rate, held = decided(False).outcomes[0]._replace(rule="rate", window=60.0), decided(False).outcomes[0]
    blocked = held._replace(rule="block", reason=Reason.BLOCKED)
    observe.report(
        replace(CALL, events=events), combine_outcomes((rate, held._replace(rule="held", window=None), blocked))
    )
    assert [fields(record)["event"] for record in caplog.records] == [events[0], events[1], events[0]]


def test_what_a_storm_left_out_is_told(caplog: pytest.LogCaptureFixture, clock: FrozenClock) -> None:
    for _ in range(100):
        observe.report(CALL, decided(False))
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
    observe.report(CALL, decided(False))
    assert len(caplog.records) == 2, "that was a line of this rule and reason, too"


def test_no_text_begins_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    evil = "any\nERROR all is lost\r\x1b[31m\u2028" + "x" * 1000
    refused = decided(False)
    outcome = refused.outcomes[0]._replace(rule=evil)
    observe.report(replace(CALL, scope=evil), refused._replace(outcomes=(outcome,)))
    formatter = logging.Formatter("%(levelname)s %(message)s %(scope)s %(rule)s %(event)s %(ident)s")
    text = formatter.format(caplog.records[0])
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert len(text) < 2000


def test_the_reference_of_a_refusal_is_the_ident_of_the_rule_that_a_client_is_told_of() -> None:
    def outcome(rule: str, ident: str, wait: float) -> Outcome:
        return Outcome(rule, ident, False, 1, 0, wait, wait, Reason.EXCEEDED)

    decision = combine_outcomes((outcome("a", "ip:192.0.2.1", 1.0), outcome("b", "user:42", 9.0)))
    assert reports.reference(decision) == reports.ident_for_logs("user:42")
    assert (
        reports.reference(Decision(allowed=False))
        == reports.reference(combine_outcomes((outcome("a", "", 1.0),)))
        == ""
    )


SIGNALS = {"throttled": throttled, "shadowed": shadowed, "quota_warning": quota_warning, "store_failed": store_failed}


class Receiver:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.told: dict[str, Any] = {}

    def hear(self, sender: object, signal: Any, call: Call, **told: Any) -> None:
        assert call is CALL
        self.names.append(next(name for name, each in SIGNALS.items() if each is signal))
        self.told = told

    async def ahear(self, sender: object, signal: Any, call: Call, **told: Any) -> None:
        await asyncio.sleep(0)
        self.hear(sender, signal, call, **told)

    def fail(self, **_: object) -> None:
        raise ZeroDivisionError

    async def afail(self, **_: object) -> None:
        raise ZeroDivisionError


@pytest.fixture(params=["hear", "ahear"])
def told(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    receiver = Receiver()
    methods = [receiver.fail, getattr(receiver, request.param), receiver.afail]
    for signal in SIGNALS.values():
        for method in methods:
            signal.connect(method, dispatch_uid=method.__name__)
    yield receiver
    for signal in SIGNALS.values():
        for method in methods:
            signal.disconnect(dispatch_uid=method.__name__)


async def tell(decision: Decision, on_loop: bool) -> None:
    if on_loop:
        await observe.areport(CALL, decision)
    else:
        await asyncio.to_thread(observe.report, CALL, decision)


WARNED = decided(True)
CROSSING = ThresholdReached(WARNED.outcomes[0], 0.8, DedupKey("one", "user:somebody", "80", 60))
TOLD = {
    "allowed": (decided(True, True), []),
    "no rule applies": (Decision(), []),
    "refused": (decided(True, False), ["throttled"]),
    "shadowed": (decided(False, shadow=True), ["shadowed"]),
    "refused by one, shadowed by another": (
        decided(False)._replace(outcomes=decided(False).outcomes + decided(False, shadow=True).outcomes),
        ["throttled", "shadowed"],
    ),
    "without the store": (decided(True)._replace(degraded=True, cause=Cause.POOL), ["store_failed"]),
    "refused without the store": (decided(False)._replace(degraded=True), ["throttled", "store_failed"]),
    "warned twice": (WARNED._replace(crossed=(CROSSING, CROSSING)), ["quota_warning"] * 2),
}


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", TOLD)
async def test_each_signal_is_sent_for_what_it_means(case: str, on_loop: bool, told: Receiver) -> None:
    decision, names = TOLD[case]
    await tell(decision, on_loop)
    assert told.names == names
    if "quota_warning" in names:
        assert told.told == {"outcome": WARNED.outcomes[0], "share": 0.8, "row": None}
    elif names:
        assert told.told == {"decision": decision}


@pytest.mark.parametrize("told", ["ahear"], indirect=True)
async def test_a_synchronous_call_on_a_loop_has_no_async_receivers(told: Receiver, caplog: Any) -> None:
    assert iscoroutinefunction(told.ahear)
    observe.report(CALL, decided(False))
    assert told.names == []
    assert "receiver was not called" in caplog.text
