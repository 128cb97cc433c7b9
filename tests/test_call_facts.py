"""The facts of a call: what it costs, and what is left of that where another door has charged for it.

Whatever a site's hook says of the cost of a frame, no budget fills and no socket ends by it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from django_throttle import call_facts
from django_throttle.call_facts import Facts, cost_of
from django_throttle.core import Rule
from django_throttle.core.decide import EarlierCharges
from django_throttle.core.rate import MAX_LIMIT
from tests.callers import ANNA
from tests.doors import Enforce, enforcer
from tests.inside import unsaid
from tests.sockets.guarded import Line, texts

API, SLOTS, UPLOADS = (
    Rule("api", "9/min"),
    Rule("api", limit=3, algorithm="concurrency"),
    Rule("api", "9/min", unit="bytes"),
)


@pytest.mark.parametrize(
    ("rule", "charged", "cost", "due"),
    [
        (API, {}, 3, 3),
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
    call = Facts("search", ("request",), ANNA, cost, charged=EarlierCharges(charged)).due(rule, "user:1")
    assert (call and call.cost) == due


enforce = pytest.fixture(enforcer)
OWN = {"rate": "5/h", "events": ["message"], "key": "connection", "algorithm": "fixed_window"}
SHARED = {**OWN, "key": "everyone"}
JUNK = [-1000, True, False, float("nan"), float("inf"), 0.5, 1.0, "1", None, [], Decimal(1)]
FRAME = {"type": "websocket.receive", "text": "x"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(call_facts, monkeypatch)


class TestWhatCounts:
    @pytest.mark.parametrize("said", [0, 1, 7, MAX_LIMIT])
    def test_whole_numbers_said_by_a_function_or_by_themselves(self, said: int, caplog: Any) -> None:
        assert cost_of(lambda frame: said, FRAME) == cost_of(said, FRAME) == said
        assert not caplog.records

    @pytest.mark.parametrize("junk", JUNK, ids=repr)
    def test_anything_else_counts_one_and_is_said_once(self, junk: Any, caplog: Any) -> None:
        def throttle_cost(frame: Any) -> Any:
            return junk

        assert [cost_of(throttle_cost, FRAME), cost_of(throttle_cost, FRAME)] == [1, 1]
        (line,) = caplog.messages
        assert f"throttle_cost says that a message costs {junk!r}" in line
        assert cost_of(junk, FRAME) == 1

    def test_a_function_that_raises(self, caplog: Any) -> None:
        def throttle_cost(frame: Any) -> int:
            return int(frame["text"])

        assert [cost_of(throttle_cost, FRAME), cost_of(throttle_cost, FRAME)] == [1, 1]
        (record,) = caplog.records
        assert "throttle_cost raised this" in record.message
        assert record.exc_info[0] is ValueError

    @pytest.mark.filterwarnings("error::RuntimeWarning")
    def test_a_function_that_would_have_to_be_awaited(self, caplog: Any) -> None:
        async def throttle_cost(frame: Any) -> int:
            return 1

        assert cost_of(throttle_cost, FRAME) == 1  # type: ignore[arg-type]  # that is the point
        assert "must not be async" in caplog.text


@pytest.mark.parametrize("rule", [OWN, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("junk", JUNK, ids=repr)
async def test_a_socket_goes_on_and_its_budget_is_kept(enforce: Enforce, rule: dict[str, Any], junk: Any) -> None:
    enforce(chat=rule)
    line = await Line(cost=lambda event: junk).open()
    line.send(*"1234567")
    await line.until(lambda: line.told("error"))
    assert texts(line) == ["1", "2", "3", "4", "5"]
    await line.close()
