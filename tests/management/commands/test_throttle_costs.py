"""The command that says what requests of each route use."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from django_throttle.meter import MEASURES
from django_throttle.observe.route_costs import CostFlusher, route_costs
from django_throttle.stores import RedisStore
from tests.inside import count_in
from tests.observe.test_route_costs import used


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("throttle_costs", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> RedisStore:
    found = RedisStore(redis_url, deadline=5.0)
    count_in(found, monkeypatch)
    route_costs.take()
    return found


def test_the_dearest_routes(store: RedisStore) -> None:
    assert run() == "No requests were measured in the last 24 hours.\n"
    for queries in (2, 2, 2, 6):
        route_costs.add("orders", used(queries, 1500, 0.25, 20_480))
    route_costs.add("search", used(3, seconds=2.0))
    CostFlusher(store)()
    first, head, queries, rows, *_ = run("--by", "rows").splitlines()
    assert first == "orders: 4 requests"
    assert head.split() == ["mean", "50", "%", "95", "%", "99", "%"]
    assert queries.split() == ["queries", "3", "2", "6", "6"]
    assert rows.split()[:2] == ["rows", "1,500"]
    assert run("--by", "db_ms").startswith("search: 1 request\n")
    assert "orders" not in run("--by", "db_ms", "--most", "1")
    with pytest.raises(CommandError, match="from 1, not 0"):
        run("--most", "0")


def test_as_json(store: RedisStore) -> None:
    route_costs.add("orders", used(2, 10, 0.25, 20_480))
    CostFlusher(store)()
    told = json.loads(run("--json"))
    assert told["hours"] == 24
    (route,) = told["routes"]
    assert (route["scope"], route["calls"]) == ("orders", 1)
    assert route["queries"] == {"mean": 2, "p50": 2, "p95": 2, "p99": 2}
    assert route["db_ms"]["mean"] == 250
    assert set(route) == {"scope", "calls", *MEASURES}
