"""Commands of a flow: the charges of a call, the refund of a charge that does not count, and control messages."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import (
    Answer,
    Decide,
    Refund,
    charge,
    check_cost,
    receipt,
    refund_for_idents,
    refund_for_status,
)
from django_throttle.core.control_messages import CLOSE, EVICTED, RESET, ControlMessage, closing, evicted, with_tags
from django_throttle.exceptions import InvalidCost

API, DOUBLE = Rule("api", "9/min"), Rule("double", "9/min", cost=2)
CAP = Rule("cap", limit=3, algorithm="concurrency")
LOGIN = Rule("login", "9/min", count_on=[401])
FITS, FULL = Answer(retry=0, remaining=1, reset=60, at=1000), Answer(retry=5, remaining=0, reset=5)


@pytest.mark.parametrize("cost", [-1, -(2**63), 0.5, 1.0, "1", None, True, float("nan")])
def test_a_cost_is_a_whole_number(cost: Any) -> None:
    with pytest.raises(InvalidCost, match="whole number from 0 on"):
        check_cost(cost)


@pytest.mark.parametrize(
    ("rule", "cost", "charged"), [(API, 3, 3), (DOUBLE, 3, 6), (CAP, 3, 1), (CAP, 0, 0), (API, 0, 0)]
)
def test_a_rule_multiplies_and_a_connection_holds_one_slot(rule: Rule, cost: int, charged: int) -> None:
    assert charge(rule, "user:1", cost).cost == charged


def of(refund: Refund | None) -> list[str]:
    return [one.charge.rule.name for one in refund.paid] if refund else []


@pytest.mark.parametrize(
    ("rules", "answers", "whole", "kept"),
    [
        ([API], [FITS], False, []),
        ([API, LOGIN], [FITS, FITS], False, ["login"]),
        ([API, LOGIN], [FITS, FITS], True, ["api", "login"]),
        ([API, LOGIN], [FITS, FULL], True, ["api"]),
        ([CAP, API], [FITS, FITS], True, ["api"]),
    ],
    ids=str,
)
def test_what_can_go_back_was_charged_under_a_rate(
    rules: list[Rule], answers: list[Answer], whole: bool, kept: list[str]
) -> None:
    decide = Decide(tuple(charge(rule, "user:1", 1) for rule in rules), whole=whole)
    assert of(receipt(decide, tuple(answers))) == kept


def test_what_goes_back_is_what_the_answer_does_not_count_for() -> None:
    charges = tuple(charge(rule, "user:1", 1) for rule in (API, LOGIN))
    paid = receipt(Decide(charges, whole=True), (FITS, FITS), locally=True)
    assert paid is not None and paid.locally
    assert (of(refund_for_status(paid, 401)), of(refund_for_status(paid, 200))) == ([], ["login"])
    assert of(refund_for_idents(paid, {("api", "user:1")})) == ["api"]
    assert refund_for_idents(paid, {("api", "user:2")}) is None


def test_a_control_message_travels_without_its_ident() -> None:
    reset, close = ControlMessage(RESET, ident="user:1"), ControlMessage(CLOSE, lease="~1")
    assert with_tags((reset, close), str.upper) == (ControlMessage(RESET, tag="USER:1"), close)
    assert closing(CAP, [("p1", "~1")]) == (ControlMessage(CLOSE, "p1", "~1", why=EVICTED, rule="cap", limit=3),)
    assert [order.lease for order in evicted(["~1", "~2", "~1"])] == ["~1", "~2"]
