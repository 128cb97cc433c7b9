"""The comparison of a live rule and its candidate counts what both decided of the same calls."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_throttle.call_facts import Facts
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import Candidate, is_in_share
from django_throttle.limiter import ask, begin
from django_throttle.recording.read import compared
from django_throttle.rulebook import Snapshot, pin
from django_throttle.stores import MemoryStore, get_store
from tests.admin.conftest import user
from tests.recording.calls import By


@pytest.fixture
def beside() -> Any:
    live = Rule("api", "5/min", key="ip", scopes=("*",), algorithm="sliding_log")
    strict = Rule("api", "3/min", key="ip", scopes=("*",), algorithm="sliding_log")
    pin(Snapshot([live], candidates=[Candidate.of("api", strict)]))
    yield
    pin(None)


@pytest.mark.usefixtures("beside")
@pytest.mark.django_db
def test_both_only_live_and_only_candidate(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_throttle.middleware.ThrottleMiddleware"]
    client.force_login(user(superuser=True))
    statuses = [client.get(reverse("admin:index")).status_code for _ in range(8)]
    assert statuses.count(429) == 3
    now = timezone.now()
    found = compared(get_store(), "api", now - timedelta(minutes=2), now + timedelta(minutes=1))
    assert (found.calls, found.both, found.only_live, found.only_candidate) == (8, 3, 0, 2)
    assert (found.of_live, found.of_candidate) == ((8, 3), (0, 0))
    assert [point[1:] for point in found.points] in ([(3, 5)], [(1, 3), (2, 2)])
    assert dict(found.rows())["Only the candidate would"] == "2"
    assert len(found.affected) == 1


def test_the_halves_are_told_apart_with_their_calls() -> None:
    """Calls that pass, which are counted at once, and others."""
    store, share = MemoryStore(), 0.5
    candidate = Candidate.of("api", Rule("api", "3/h", algorithm="sliding_log"), share)
    snapshot = Snapshot([Rule("api", "5/h", algorithm="sliding_log")], candidates=[candidate])
    within = 0
    for number in range(20):
        ident = f"user:{number}"
        facts = Facts("search", ("request",), By(ident), ident=ident)
        within += is_in_share(ident, share, secret_bytes(conf().KEY_SECRET))
        for _ in range(7):
            ask(begin(snapshot, facts, store, True), store, facts)
    now = timezone.now()
    found = compared(store, "api", now - timedelta(minutes=5), now + timedelta(minutes=5))
    without = 20 - within
    assert 0 < within < 20
    assert found.of_candidate == (7 * within, 4 * within)
    assert found.of_live == (7 * without, 2 * without)
    assert dict(found.rows())["Refused where the candidate holds"] == f"{4 * within} of {7 * within}, 57.1%"
    assert json.loads(json.dumps(found.as_json()))["live_holds"] == {"calls": 7 * without, "refused": 2 * without}
