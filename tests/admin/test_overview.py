"""The pages of rules at work and of costs: what rules did and routes used."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils import translation

from django_throttle import rulebook
from django_throttle.admin.overview import bars
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


def test_rules_come_fifty_a_page_and_can_be_searched(enforce: Enforce, operator: Client) -> None:
    enforce(**{f"rule {number:03}": {"rate": "1/s", "scopes": [f"scope{number}"]} for number in range(120)})
    first, last = (text(operator.get(OVERVIEW, {"page": page})) for page in (1, 3))
    assert "Page 1 of 3" in first and "rule 049" in first and "rule 050" not in first
    assert "Page 3 of 3" in last and "rule 119" in last
    found = text(operator.get(OVERVIEW, {"q": "rule 11"}))
    assert "rule 110" in found and "rule 109" not in found and "No route or consumer" in found
    assert "No rule has such a name" in text(operator.get(OVERVIEW, {"q": "nothing"}))


def test_bars_stand_on_each_other() -> None:
    (bar,) = bars([(0, 0), (3, 1)])
    assert (float(bar["allowed"]), float(bar["refused"]), float(bar["refused_y"])) == (18, 6, 0)


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


def test_the_lists_lead_to_the_pages(operator: Client) -> None:
    rules = operator.get(url("throttlerule_changelist")).content.decode()
    overrides = operator.get(url("throttleoverride_changelist")).content.decode()
    for name in ("costs", "overview", "explain", "throttlerule_add"):
        assert f'href="{url(name)}"' in rules, name
    for name in ("explain", "throttleoverride_add"):
        assert f'href="{url(name)}"' in overrides, name
