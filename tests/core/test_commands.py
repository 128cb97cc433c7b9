"""Commands of a flow: the charges of a call, the refund of a charge that does not count, and control messages."""

from __future__ import annotations

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import (
    Answer,
    Decide,
    Refund,
    charge,
    receipt,
    refund_for_idents,
    refund_for_status,
)

API, DOUBLE = Rule("api", "9/min"), Rule("double", "9/min", cost=2)
CAP = Rule("cap", limit=3, algorithm="concurrency")
LOGIN = Rule("login", "9/min", count_on=[401])
FITS, FULL = Answer(retry=0, remaining=1, reset=60, at=1000), Answer(retry=5, remaining=0, reset=5)


def of(refund: Refund | None) -> list[str]:
    return [one.charge.rule.name for one in refund.paid] if refund else []


@pytest.mark.parametrize(
    ("rules", "answers", "whole", "kept"),
    [
        ([API], [FITS], False, []), ([API, LOGIN], [FITS, FITS], False, ["login"]),
        ([API, LOGIN], [FITS, FITS], True, ["api", "login"]), ([API, LOGIN], [FITS, FULL], True, ["api"]),
        ([CAP, API], [FITS, FITS], True, ["api"]),
    ],
    ids=str,
)  # fmt: skip
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
