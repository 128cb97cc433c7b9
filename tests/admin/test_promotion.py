"""Promotions of candidates: who may, and of two who do at once."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from django_throttle.admin.candidates import ThrottleCandidateAdmin
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleRule
from tests.admin.conftest import errors, form, messages, url, user

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate() -> ThrottleCandidate:
    ThrottleRule.objects.create(name="api", rate="5/min")
    row = ThrottleCandidate.of(ThrottleRule(name="api", rate="3/min"), "api", "anna")
    row.save()
    return row


def test_to_add_a_rule_takes_the_permission_to_add(client: Client, candidate: ThrottleCandidate) -> None:
    operator = user("view_throttlerule", "change_throttlerule")
    client.force_login(operator)
    ThrottleRule.objects.all().delete()
    page = url("throttlecandidate_change", candidate.pk)
    shown = client.get(page).content.decode()
    assert "Discard" in shown and "Promote" not in shown
    refused = client.post(page, form(client, page, starts_at_0="2030-01-01", starts_at_1="00:00"))
    assert errors(refused) == {"starts_at": ["It would be added to the rules, and you may not add rules."]}
    assert client.post(url("promote", candidate.pk)).status_code == 403
    assert (ThrottleRule.objects.count(), ThrottleCandidate.objects.count()) == (0, 1)
    operator.user_permissions.add(Permission.objects.get(codename="add_throttlerule"))
    assert "Promote" in client.get(page).content.decode()
    client.post(url("promote", candidate.pk))
    assert ThrottleRule.objects.get().rate == "3/min"


def test_of_two_who_promote_the_second_is_told(
    operator: Client, candidate: ThrottleCandidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = ThrottleCandidate.objects.get()
    candidate.promote()
    lines = ThrottleChange.objects.count()
    monkeypatch.setattr(ThrottleCandidateAdmin, "_asked", lambda *_: stale)  # as one who asked just before
    answer = operator.post(url("promote", stale.pk))
    assert messages(answer) == ["Not promoted. The candidate was promoted or discarded meanwhile."]
    assert operator.get(answer["Location"]).status_code == 200
    operator.post(url("discard", stale.pk))
    assert ThrottleChange.objects.count() == lines
