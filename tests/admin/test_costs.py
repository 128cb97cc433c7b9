"""The admin's page of costs: what routes used, for those who may see the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_throttle.meter import MEASURES
from django_throttle.observe.route_costs import CostFlusher, route_costs
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import user
from tests.doors import BOTH, Enforce
from tests.observe.test_route_costs import used
from tests.servers import free_port

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)
PAGE = reverse("admin:django_throttle_costs")


@pytest.fixture(autouse=True)
def nothing_used() -> Iterator[None]:
    route_costs.take()
    yield
    route_costs.take()


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(user("view_throttlerule"))
    return client


def texts(client: Client, query: str = "") -> str:
    route_costs.take()
    answer = client.get(PAGE + query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.content.decode()))


@BOTH
def test_routes_with_what_they_used(enforce: Enforce, operator: Client) -> None:
    store = enforce()
    for _ in range(3):
        route_costs.add("<b>orders", used(12, 1500, 0.25, 20_480))
    route_costs.add("search", used(40, 10, 0.5))
    if isinstance(store, RedisStore):
        CostFlusher(store)()
    page = operator.get(PAGE).content.decode()
    found = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    assert "&lt;b&gt;orders 3 12 12.5 · 12.5 · 12.5 1,500 " in found
    assert ("this process" if store.is_remote is False else "in all processes") in found
    assert all(f'href="?by={name}"' in page for name in MEASURES)
    with translation.override("de"):
        german = operator.get(PAGE).content.decode()
    assert "12,5 · 12,5 · 12,5" in german and ">1.500<" in german
    assert all(f">{label}</a>" in german for label in ("Datenbankabfragen", "Bytes der Antworten"))
    by_rows = operator.get(f"{PAGE}?by=rows").content.decode()
    by_queries = operator.get(f"{PAGE}?by=queries").content.decode()
    assert by_rows.index("orders") < by_rows.index(">search<")
    assert by_queries.index(">search<") < by_queries.index("orders")


def test_nobody_else_sees_it(client: Client) -> None:
    assert client.get(PAGE).status_code == 302
    client.force_login(user("view_throttleconnection"))
    assert client.get(PAGE).status_code == 403


def test_it_changes_nothing_and_takes_whatever_is_asked(enforce: Enforce, operator: Client) -> None:
    enforce()
    assert operator.post(PAGE).status_code == 405
    for by in ("", "calls", "\x00", "x" * 5000):
        assert operator.get(PAGE, {"by": by}).status_code == 200
    assert "No requests were measured" in texts(operator)


def test_redis_that_does_not_answer(enforce: Enforce, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce()
    doors.count_in(RedisStore(f"redis://127.0.0.1:{free_port()}/0"), monkeypatch)
    assert "Redis does not answer" in texts(operator)


def test_the_list_of_rules_leads_there(enforce: Enforce, operator: Client) -> None:
    enforce()
    assert f'href="{PAGE}"' in operator.get(reverse("admin:django_throttle_throttlerule_changelist")).content.decode()
