"""The page of rules at work: what rules did, which processes lag, for those who may see the rules."""

from __future__ import annotations

import os

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_throttle import rulebook
from django_throttle.admin.overview import bars
from django_throttle.recording import RecordFlusher, own_records
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import user
from tests.doors import BOTH, Enforce
from tests.recording.calls import call

pytestmark = pytest.mark.django_db
enforce = pytest.fixture(doors.enforcer)
PAGE = reverse("admin:django_throttle_overview")


@BOTH
def test_rules_with_what_they_did(enforce: Enforce, client: Client) -> None:
    own_records.forget()
    store = enforce(**{"<b>api": {"rate": "3/hour"}, "idle": {"rate": "3/hour"}})
    rules = [rule for rule in rulebook.current().rules if rule.name == "<b>api"]
    assert call(store, rules, "user:1", 4) == 3
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    client.force_login(user("view_throttlerule"))
    page = client.get(PAGE).content.decode()
    assert "&lt;b&gt;api" in page and "<b>api" not in page
    assert "25.0%" in page
    assert 'aria-label="4 calls, 3 allowed"' in page
    with translation.override("de"):
        german = client.get(PAGE).content.decode()
    assert ">25,0\xa0%<" in german and 'aria-label="4 Aufrufe, 3 erlaubt"' in german
    unknown = 2 + isinstance(store, RedisStore)  # how long after an edit the process had its first rules
    assert page.count('<td class="number">–</td>') == unknown, "no share and no time of a rule without calls"
    if isinstance(store, RedisStore):
        assert "1 of 1 processes have version " in page
        assert f"{os.getpid()} on " in page
    assert "No rule has such a name" in client.get(PAGE, {"q": "nothing <script>"}).content.decode()
    assert client.get(PAGE, {"page": "99999999999x"}).status_code == 200


def test_only_those_who_may_see_rules(client: Client) -> None:
    client.force_login(user())
    assert client.get(PAGE).status_code == 403


def test_bars_stand_on_each_other() -> None:
    (bar,) = bars([(0, 0), (3, 1)])
    assert (float(bar["allowed"]), float(bar["refused"])) == (18, 6)
    assert float(bar["refused_y"]) == 0
