"""The facts of a call: what it costs, and what is left of that where another door has charged for it."""

from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.ledger import Ledger
from django_throttle.identity import site_functions
from django_throttle.identity.call import Call
from django_throttle.identity.site_functions import cost_of, own_function
from tests.callers import ANNA
from tests.inside import unsaid

API, SLOTS = Rule("api", "9/min"), Rule("api", limit=3, algorithm="concurrency")
UPLOADS = Rule("api", "9/min", unit="bytes")


@pytest.mark.parametrize(
    ("rule", "charged", "cost", "due"),
    [
        (API, {("api", "user:2"): 1}, 3, 3),
        (API, {("other", "user:1"): 1}, 3, 3),
        (API, {("api", "user:1"): 1}, 3, 2),
        (API, {("api", "user:1"): 1}, 9, 8),
        (API, {("api", "user:1"): 1}, 10, 10),  # it never fits: the refusal is to say so
        (API, {("api", "user:1"): 3}, 3, None),
        (API, {("api", "user:1"): 5}, 3, None),
        (SLOTS, {("api", "user:1"): 1}, 3, None),
        (UPLOADS, {("api", "user:1"): 1}, 3, None),
    ],
    ids=str,
)
def test_only_what_no_door_has_charged_is_due(rule: Rule, charged: dict[Any, int], cost: int, due: int | None) -> None:
    call = Call("search", ("request",), ANNA, cost, charged=Ledger.of_costs(charged)).due(rule, "user:1")
    assert (call and call.cost) == due


JUNK = [-1000, True, False, float("nan"), float("inf"), 0.5, 1.0, "1", None, []]
FRAME = {"type": "websocket.receive", "text": "x"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(site_functions, monkeypatch)


async def awaited(frame: Any) -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        *((lambda frame, junk=junk: junk, f"gives {junk!r}, not a whole number, 0 or more") for junk in JUNK),
        (lambda frame: int(frame["text"]), "raised this"),
        (awaited, "must not be async"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_anything_else_counts_1_and_is_said_once(function: Any, message: str, caplog: Any) -> None:
    assert [cost_of(function, FRAME), cost_of(function, FRAME)] == [1, 1]
    (record,) = caplog.records
    assert message in record.message
    assert (record.exc_info and record.exc_info[0]) == (ValueError if message == "raised this" else None)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(lambda request: 1, 1), (lambda self, request: 2, 2), (lambda *found: len(found), 2), (lambda self: 1, 1)],
)
def test_a_function_of_a_class_gets_the_instance_where_it_has_a_place_for_it(function: Any, arguments: int) -> None:
    door = type("Door", (), {"cost": function})()
    found = own_function(door.cost)
    assert found() == 1 if function.__code__.co_varnames == ("self",) else found("request") == arguments
