"""Costs by route: what a process counts, adds up in Redis, and reads back as percentiles."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle import agent
from django_throttle.console import route_costs
from django_throttle.console.route_costs import (
    MAX_SCOPES,
    OTHERS,
    TTL_MS,
    CostFlusher,
    RouteCosts,
    bucket_of,
    fetch,
    most_expensive,
    value_of,
)
from django_throttle.costs.meter import Meter, QueryUsage
from django_throttle.exceptions import StoreError
from django_throttle.stores import RedisStore
from tests.servers import RedisServer, free_port


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> RouteCosts:
    made = RouteCosts()
    monkeypatch.setattr(route_costs, "route_costs", made)
    return made


def used(queries: int, rows: int = 0, seconds: float = 0.0, size: int = 0) -> Meter:
    meter = Meter(bytes=size)
    meter.uses["default", "", 0] = QueryUsage(queries, rows, seconds)
    meter.stop()
    return meter


class TestHistograms:
    def test_small_numbers_are_exact_and_others_near(self) -> None:
        assert [value_of(bucket_of(number)) for number in range(8)] == list(range(8))
        for number in [*range(8, 3000), 10**6, 10**9, 2**40]:
            assert value_of(bucket_of(number)) == pytest.approx(number, rel=0.1)

    def test_memory_is_bounded_however_many_scopes_there_are(self, costs: RouteCosts) -> None:
        for number in range(MAX_SCOPES + 50):
            costs.add(f"scope {number}", used(1))
        calls = {route.scope: route.calls for route in most_expensive(costs.peek())}
        assert len(calls) == MAX_SCOPES + 1
        assert calls[OTHERS] == 50


class TestRedis:
    def test_what_processes_send_is_added_up(self, costs: RouteCosts, redis_url: str) -> None:
        store = RedisStore(redis_url, deadline=5.0)
        for queries in (3, 5):  # as two processes would
            for _ in range(10):
                costs.add("search", used(queries, 100, 0.01))
            with pytest.raises(StoreError):
                CostFlusher(RedisStore(f"redis://127.0.0.1:{free_port()}/0"))()
            CostFlusher(store)()  # what could not be sent is sent later
            assert not costs.peek()
        (route,) = most_expensive(fetch(store))
        assert (route.scope, route.calls) == ("search", 20)
        assert route.spreads["queries"] == (4, 3, 5, 5)
        assert route.spreads["rows"].mean == 100

    def test_only_the_last_day_counts(
        self, costs: RouteCosts, redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, now = RedisStore(redis_url, deadline=5.0), timezone.now()
        for age in (0, 20, 24, 50):
            monkeypatch.setattr(timezone, "now", lambda age=age: now - timedelta(hours=age))
            costs.add(f"{age} hours ago", used(1))
            CostFlusher(store)()
        monkeypatch.setattr(timezone, "now", lambda: now)
        assert {route.scope for route in most_expensive(fetch(store))} == {"0 hours ago", "20 hours ago"}
        with redis_server.client() as client:
            keys = client.keys("*costs*")
            assert len(keys) == 4
            assert all(0 < client.pttl(key) <= TTL_MS for key in keys)

    @pytest.mark.agent
    def test_the_agent_sends_it_when_the_process_ends(self, costs: RouteCosts, redis_url: str, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
        store = RedisStore(redis_url, deadline=5.0)
        agent.ensure(store, rules=True)
        costs.add("search", used(7))
        agent.stop_for(store)
        assert [route.scope for route in most_expensive(fetch(store))] == ["search"]
        assert CostFlusher.seconds == 10.0
