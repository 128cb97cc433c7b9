"""The admin's pages of candidates: an edited rule is saved as one, compared, promoted or discarded."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from django_throttle.admin.candidates import picture
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleRule
from tests.admin.conftest import form, url


def save(client: Client, **values: Any) -> ThrottleCandidate:
    row = ThrottleRule.objects.filter(name="api").first() or ThrottleRule.objects.create(name="api", rate="5/min")
    page = url("throttlerule_change", row.pk)
    posted = form(client, page, **{"rate": "3/min", "edit_reason": "try it", **values})
    answer = client.post(page, {**posted, "_candidate": "1"})
    candidate = ThrottleCandidate.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, url("throttlecandidate_change", candidate.pk))
    return candidate


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("step", "rate", "action"), [("promote", "4/min", "promoted"), ("discard", "5/min", "discarded")]
)
def test_an_edited_rule_is_saved_as_a_candidate_and_one_click_ends_it(
    operator: Client, step: str, rate: str, action: str
) -> None:
    candidate = save(operator, name="renamed")
    assert ThrottleRule.objects.get().rate == "5/min"
    assert (candidate.name, candidate.created_by) == ("api", "somebody")
    assert candidate.options == {"name": "api", "rate": "3/min"}
    line = ThrottleChange.objects.latest("pk")
    assert (line.kind, line.who, line.reason) == ("candidate", "somebody", "try it")
    ThrottleCandidate.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert timedelta(minutes=59) < timezone.now() - ThrottleCandidate.objects.get().since < timedelta(minutes=61)
    again = save(operator, rate="4/min")
    assert again.options["rate"] == "4/min"
    assert again.since == again.created_at > timezone.now() - timedelta(minutes=1)
    assert operator.post(url(step, again.pk), follow=True).status_code == 200
    assert ThrottleRule.objects.get().rate == rate
    assert not ThrottleCandidate.objects.exists()
    line = ThrottleChange.objects.filter(kind="candidate").latest("pk")
    assert (line.who, line.action) == ("somebody", action)


def test_the_picture_has_a_bar_for_each_rule_and_minute() -> None:
    now = timezone.now()
    shown = picture([(now - timedelta(minutes=59), 0, 2), (now - timedelta(minutes=1), 8, 4)], now)
    assert "refused 8 calls, the candidate 6" in shown
    bars = re.findall(r'<rect class="(.+?)" x="(.+?)" y="(.+?)" .*?height="(.+?)"', shown)
    first, live, second = bars
    assert first == ("candidate", "3.60", "48.00", "16.00")
    assert (live, second) == (("live", "464.00", "0.00", "64.00"), ("candidate", "467.60", "32.00", "32.00"))
    with translation.override("de"):
        assert "1 Aufruf abgelehnt, der Kandidat 2.000" in picture([(now, 1, 2000)], now)
