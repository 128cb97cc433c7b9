"""The admin's pages of candidates, and a candidate's life in a real browser."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.html import escape
from playwright.sync_api import BrowserContext, expect

from django_throttle.admin.candidates import picture
from django_throttle.call_facts import Facts
from django_throttle.core.overrides import candidate_name
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleRule
from django_throttle.recording import own_records, recorder
from tests.admin.conftest import user
from tests.admin.test_connections_page import browser, site
from tests.admin.test_connections_page import operator as visitor
from tests.admin.test_history import form, rule_page
from tests.admin.test_rules import NASTY
from tests.recording.test_recorder import refusal

__all__ = ["browser", "site", "visitor"]
LIST = reverse("admin:django_throttle_throttlecandidate_changelist")


def made(client: Client, **values: Any) -> ThrottleCandidate:
    row = ThrottleRule.objects.filter(name="api").first() or ThrottleRule.objects.create(name="api", rate="5/min")
    posted = form(client, rule_page(row), **{"rate": "3/min", "edit_reason": "try it", **values})
    answer = client.post(rule_page(row), {**posted, "_candidate": "1"})
    candidate = ThrottleCandidate.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == reverse("admin:django_throttle_throttlecandidate_change", args=[candidate.pk])
    return candidate


@pytest.mark.django_db
def test_an_edited_rule_is_saved_as_a_candidate_and_the_rule_stays(operator: Client) -> None:
    candidate = made(operator, name="renamed")
    assert ThrottleRule.objects.get().rate == "5/min"
    assert (candidate.name, candidate.options, candidate.created_by) == (
        "api", {"name": "api", "rate": "3/min"}, "somebody",
    )  # fmt: skip
    line = ThrottleChange.objects.first()
    assert line is not None
    assert (line.kind, line.who, line.reason) == ("candidate", "somebody", "try it")
    ThrottleCandidate.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert timedelta(minutes=59) < timezone.now() - ThrottleCandidate.objects.get().since < timedelta(minutes=61)
    made(operator, rate="4/min")
    again = ThrottleCandidate.objects.get()
    assert again.options["rate"] == "4/min"
    assert again.since == again.created_at > timezone.now() - timedelta(minutes=1)


@pytest.mark.django_db
@pytest.mark.parametrize(("step", "rate"), [("promote", "3/min"), ("discard", "5/min")])
def test_one_click_ends_it(operator: Client, step: str, rate: str) -> None:
    candidate = made(operator)
    page = reverse(f"admin:django_throttle_{step}", args=[candidate.pk])
    assert operator.get(page).status_code == 405
    assert operator.post(page, follow=True).status_code == 200
    assert ThrottleRule.objects.get().rate == rate
    assert not ThrottleCandidate.objects.exists()
    line = ThrottleChange.objects.filter(kind="candidate").first()
    assert line is not None
    assert (line.who, line.action) == ("somebody", f"{step}d".replace("discardd", "discarded"))


@pytest.mark.django_db
def test_who_may_only_see_changes_nothing(operator: Client, client: Client) -> None:
    candidate = made(operator)
    page = reverse("admin:django_throttle_throttlecandidate_change", args=[candidate.pk])
    operator.logout()
    from django.contrib.auth.models import User

    User.objects.all().delete()
    client.force_login(user("view_throttlerule"))
    assert client.get(LIST).status_code == 200
    text = client.get(page).content.decode()
    assert "Both would refuse" in text
    assert "Promote" not in text
    assert client.post(reverse("admin:django_throttle_promote", args=[candidate.pk])).status_code == 403


@pytest.mark.django_db
def test_whom_it_would_refuse_is_inert(operator: Client, settings: Any) -> None:
    own_records.forget()
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RECORD_IDENTS": True}
    candidate = made(operator)
    recorder.happened(Facts("search", ("request",), KnownCaller(NASTY)), refusal(candidate_name("api"), NASTY), 0.001)
    page = operator.get(reverse("admin:django_throttle_throttlecandidate_change", args=[candidate.pk]))
    assert NASTY not in page.content.decode() and f"<code>{escape(NASTY)}</code>: 1" in page.content.decode()
    own_records.forget()


def test_the_picture_has_a_bar_for_each_rule_and_minute() -> None:
    now = timezone.now()
    shown = picture([(now - timedelta(minutes=59), 0, 2), (now - timedelta(minutes=1), 8, 4)], now)
    assert "refused 8 calls, the candidate 6" in shown
    bars = re.findall(r'<rect class="(.+?)" x="(.+?)" y="(.+?)" .*?height="(.+?)"', shown)
    assert bars == [
        ("candidate", "3.60", "48.00", "16.00"),
        ("live", "464.00", "0.00", "64.00"),
        ("candidate", "467.60", "32.00", "32.00"),
    ]
    assert "<rect" not in picture([], now)
    with translation.override("de"):
        assert "1 Aufruf abgelehnt, der Kandidat 2.000" in picture([(now, 1, 2000)], now)


def test_in_a_browser_it_is_saved_compared_and_promoted(visitor: BrowserContext) -> None:
    page = visitor.new_page()
    page.goto("/admin/django_throttle/throttlerule/add/")
    page.fill("[name=name]", "trial")
    page.fill("[name=rate]", "50/min")
    page.click("[name=_continue] >> nth=0")
    page.fill("[name=rate]", "20/min")
    page.get_by_role("button", name="Save as candidate").click()
    expect(page.locator(".success")).to_contain_text("The candidate of trial counts beside it")
    expect(page.locator(".candidate-comparison")).to_contain_text("Only the candidate would")
    expect(page.get_by_role("img", name="In the last hour the live rule would have refused 0 calls")).to_be_visible()
    page.fill("[name=share]", "0.1")
    page.click("[name=_continue] >> nth=0")
    expect(page.locator("[name=share]")).to_have_value("0.1")
    page.get_by_role("button", name="Promote").click()
    expect(page.locator(".success")).to_contain_text("Promoted: trial is")
    expect(page.locator("[name=rate]")).to_have_value("20/min")
    page.close()
