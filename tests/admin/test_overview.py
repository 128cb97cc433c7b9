"""The pages of rules at work and of costs: what rules did and routes used."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils import translation

from django_throttle import rulebook
from django_throttle.meter import MEASURES
from django_throttle.observe.route_costs import CostFlusher, route_costs
from django_throttle.recording import RecordFlusher, own_records
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import text, url
from tests.doors import BOTH, Enforce
from tests.observe.test_route_costs import used
from tests.recording.calls import call
from tests.servers import free_port

pytestmark = pytest.mark.django_db
OVERVIEW, COSTS = url("overview"), url("costs")


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    own_records.forget()
    route_costs.take()
    yield
    own_records.forget()
    route_costs.take()


@BOTH
def test_rules_with_what_they_did(enforce: Enforce, operator: Client) -> None:
    store = enforce(api={"rate": "3/hour"}, idle={"rate": "3/hour"})
    rules = [rule for rule in rulebook.current().rules if rule.name == "api"]
    assert call(store, rules, "user:1", 4) == 3
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    page = operator.get(OVERVIEW).content.decode()
    assert "25.0%" in page and 'aria-label="4 calls, 3 allowed"' in page
    unknown = 2 + isinstance(store, RedisStore)  # how long after an edit the process had its first rules
    assert page.count('<td class="number">–</td>') == unknown, "no share and no time of a rule without calls"
    if isinstance(store, RedisStore):
        assert "1 of 1 processes have version " in page and f"{os.getpid()} on " in page
    with translation.override("de"):
        german = operator.get(OVERVIEW).content.decode()
    assert ">25,0\xa0%<" in german and 'aria-label="4 Aufrufe, 3 erlaubt"' in german


@BOTH
def test_routes_with_what_they_used(enforce: Enforce, operator: Client) -> None:
    store = enforce()
    assert "No requests were measured" in text(operator.get(COSTS))
    for _ in range(3):
        route_costs.add("orders", used(12, 1500, 0.25, 20_480))
    route_costs.add("search", used(40, 10, 0.5))
    if isinstance(store, RedisStore):
        CostFlusher(store)()
    page = operator.get(COSTS)
    assert "orders 3 12 12.5 · 12.5 · 12.5 1,500 " in text(page)
    assert ("in all processes" if store.is_remote else "this process") in text(page)
    assert all(f'href="?by={name}"' in page.content.decode() for name in MEASURES)
    with translation.override("de"):
        german = text(operator.get(COSTS))
    assert "12,5 · 12,5 · 12,5 1.500 " in german and "Datenbankabfragen" in german
    for by, first in (("rows", "orders"), ("queries", "search")):
        shown = operator.get(COSTS, {"by": by}).content.decode()
        assert min(shown.index(name) for name in (">orders<", ">search<")) == shown.index(f">{first}<")


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("page", ["costs", "overview"])
def test_they_are_read_only_and_say_that_redis_does_not_answer(
    enforce: Enforce, operator: Client, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    enforce()
    assert operator.post(url(page)).status_code == 405
    doors.count_in(RedisStore(f"redis://127.0.0.1:{free_port()}/0"), monkeypatch)
    assert "Redis does not answer" in text(operator.get(url(page)))
