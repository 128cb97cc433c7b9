"""The commands that look into Redis: throttle_costs, throttle_inspect and refresh_connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.management.commands import throttle_inspect
from django_throttle.meter import MEASURES
from django_throttle.observe.route_costs import CostFlusher, route_costs
from django_throttle.stores import RedisStore
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.inside import count_in
from tests.management.shell import run
from tests.observe.test_route_costs import used


@pytest.fixture
def store(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> RedisStore:
    found = redis_store(redis_url)
    count_in(found, monkeypatch)
    route_costs.take()
    return found


def test_the_dearest_routes(store: RedisStore) -> None:
    assert run("throttle_costs") == "No requests were measured in the last 24 hours.\n"
    for queries in (2, 2, 2, 6):
        route_costs.add("orders", used(queries, 1500, 0.25, 20_480))
    route_costs.add("search", used(3, seconds=2.0))
    CostFlusher(store)()
    first, head, queries, rows, *_ = run("throttle_costs --by rows").splitlines()
    assert first == "orders: 4 requests"
    assert head.split() == ["mean", "50", "%", "95", "%", "99", "%"]
    assert queries.split() == ["queries", "3", "2", "6", "6"]
    assert rows.split()[:2] == ["rows", "1,500"]
    assert run("throttle_costs --by db_ms").startswith("search: 1 request\n")
    assert "orders" not in run("throttle_costs --by db_ms --most 1")
    with pytest.raises(CommandError, match="from 1, not 0"):
        run("throttle_costs --most 0")
    told = json.loads(run("throttle_costs --json --by queries"))
    (orders,) = (route for route in told["routes"] if route["scope"] == "orders")
    assert (told["hours"], orders["calls"], orders["db_ms"]["mean"]) == (24, 4, 250)
    assert orders["queries"] == {"mean": 3, "p50": 2, "p95": 6, "p99": 6}
    assert set(orders) == {"scope", "calls", *MEASURES}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sockets.clear()
    overview.look_again()
    monkeypatch.setattr(throttle_inspect, "ANSWER_SECONDS", 0.3)
    yield
    open_sockets.clear()


def test_who_has_how_many_sockets(nobody: None, store: RedisStore, redis_url: str) -> None:
    stores = (store, redis_store(redis_url))
    for each in stores:
        Reconciler(each).beat()
    sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:2"))
    assert run("throttle_inspect").splitlines()[0] == "0 sockets open in 2 processes"
    for each in stores:
        SocketControl(each)()
    overview.look_again()
    lines = run("throttle_inspect").splitlines()
    assert lines[0] == "6 sockets open in 2 processes"  # both are this process
    assert lines[1].endswith(": 3 sockets open; 0 leases, of these and of requests in flight")
    assert lines[3:] == ["      4  user:1  (in 2 processes)", "      2  user:2  (in 2 processes)"]
    assert run("throttle_inspect --most 1").splitlines()[3:] == ["      4  user:1  (in 2 processes)"]


def test_a_process_that_does_not_answer(nobody: None, store: RedisStore) -> None:
    Reconciler(store).beat()
    first, second = run("throttle_inspect").splitlines()
    assert first == "0 sockets open in 1 process"
    assert "has not answered (it has no sockets, or is too busy); 0 leases" in second


def test_a_pass_of_the_refresher_is_a_line(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "AGENT": False}
    said = run("refresh_connections --once")
    assert "processes 0 alive, 0 dead; connections 0 held, 0 freed; keys 0 extended" in said
    for interval in ("0", "-1", "nan", "soon", "1e9"):
        with pytest.raises(CommandError, match=f"must be a number of seconds from 0.05 to 3600, not '{interval}'"):
            run("refresh_connections --interval", interval)
