"""The comparison of a live rule and its candidate counts what both decided of the same calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_throttle.core import Rule
from django_throttle.core.overrides import Candidate
from django_throttle.recording.read import compared
from django_throttle.rulebook import Snapshot, pin
from django_throttle.stores import get_store
from tests.admin.conftest import user


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
    assert (found.refused_by_live, found.refused_by_candidate) == (3, 0)
    assert dict(found.rows())["Only the candidate would"] == "2"
    assert len(found.affected) == 1
