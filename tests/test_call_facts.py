"""The facts of a call: what it costs, and what is left of that where another door has charged for it."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.core.decide import EarlierCharges
from django_throttle.exceptions import InvalidCost
from tests.callers import ANNA

API, SLOTS, UPLOADS = (
    Rule("api", "9/min"),
    Rule("api", limit=3, algorithm="concurrency"),
    Rule("api", "9/min", unit="bytes"),
)


@pytest.mark.parametrize("cost", [-1, 0.5, "1", None, True])
def test_a_cost_that_is_none_is_refused_where_it_is_said(cost: Any) -> None:
    with pytest.raises(InvalidCost):
        Facts("search", ("request",), ANNA, cost)


@pytest.mark.parametrize(
    ("rule", "charged", "cost", "due"),
    [
        (API, {}, 3, 3),
        (API, {("api", "user:2"): 1}, 3, 3),
        (API, {("other", "user:1"): 1}, 3, 3),
        (API, {("api", "user:1"): 1}, 3, 2),
        (API, {("api", "user:1"): 3}, 3, None),
        (API, {("api", "user:1"): 5}, 3, None),
        (SLOTS, {("api", "user:1"): 1}, 3, None),
        (UPLOADS, {("api", "user:1"): 1}, 3, None),
    ],
    ids=str,
)
def test_only_what_no_door_has_charged_is_due(rule: Rule, charged: dict[Any, int], cost: int, due: int | None) -> None:
    call = Facts("search", ("request",), ANNA, cost, charged=EarlierCharges(charged)).due(rule, "user:1")
    assert (call and call.cost) == due
