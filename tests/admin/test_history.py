"""The admin's pages of the history: edits of every page have a line, and one click takes one back."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from tests.admin.conftest import form, url

pytestmark = pytest.mark.django_db
LIST = url("throttlechange_changelist")


def create(name: str = "api", rate: str = "5/min") -> ThrottleRule:
    return ThrottleRule.objects.create(name=name, rate=rate)


def newest() -> Any:
    return ThrottleChange.objects.latest("pk")


def revert(client: Client, line: ThrottleChange, **posted: str) -> str:
    answer = client.post(url("revert", line.pk), posted, follow=True)
    return " ".join(map(str, answer.context["messages"]))


def test_every_page_says_who_and_the_form_why(operator: Client) -> None:
    page = url("throttlerule_change", create().pk)
    answer = operator.post(page, form(operator, page, rate="7/min", edit_reason="slow\u2028db"))
    assert answer.status_code == 302
    line = newest()
    assert (line.who, line.via, line.reason, line.words) == ("somebody", "admin", "slow\u2028db", "rate: 5/min → 7/min")
    row, page = ThrottleRule.objects.get(), url("throttlerule_changelist")
    edited = {"id": row.pk, "rate": "8/min", "limit": "", "action": "shadow", "enabled": "on"}
    rows = {f"form-0-{name}": value for name, value in edited.items()}
    operator.post(page, {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "_save": "Save", **rows})
    operator.post(page, {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"})
    told = list(ThrottleChange.objects.values_list("who", "action")[:2])
    assert told == [("somebody", "removed"), ("somebody", "changed")]


def test_the_end_of_an_override_is_reverted(operator: Client) -> None:
    row = ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", effect="block", reason="abuse")
    operator.post(url("throttleoverride_changelist"), {"action": "end_now", "_selected_action": row.pk})
    line = newest()
    assert (line.who, line.name, line.action) == ("somebody", "Address 192.0.2.1", "changed")
    assert "Reverted" in revert(operator, line)
    row.refresh_from_db()
    assert row.until is None


def test_one_click_reverts_an_edit_a_removal_and_an_addition(operator: Client) -> None:
    row = create()
    ThrottleRule.objects.update(rate="7/min")
    edit = newest()
    assert revert(operator, edit) == "Reverted: rate: 7/min → 5/min."
    reverted = newest()
    assert (reverted.action, reverted.who, reverted.reason) == ("reverted", "somebody", f"revert of change {edit.pk}")
    assert "nothing to revert" in revert(operator, edit)
    row.delete()
    assert revert(operator, newest()) == "Reverted: Rule api is there again."
    assert ThrottleRule.objects.get().rate == "5/min"
    revert(operator, ThrottleChange.objects.earliest("pk"))
    assert not ThrottleRule.objects.exists()


def test_what_has_changed_since_is_reverted_only_when_confirmed(operator: Client) -> None:
    create()
    ThrottleRule.objects.update(rate="7/min")
    edit = newest()
    ThrottleRule.objects.update(rate="9/min")
    assert revert(operator, edit) == "Not reverted. It has been edited since: rate: 7/min → 9/min."
    assert ThrottleRule.objects.get().rate == "9/min"
    assert "Revert all the same" in operator.get(url("throttlechange_change", edit.pk) + "?confirm=1").content.decode()
    revert(operator, edit, confirmed="1")
    assert ThrottleRule.objects.get().rate == "5/min"


def test_what_would_be_invalid_or_is_no_edit_is_not_reverted(operator: Client) -> None:
    create()
    ThrottleRule.objects.all().delete()
    removal = newest()
    ThrottleChange.objects.filter(pk=removal.pk).update(before={"name": "api", "rate": "soon"})
    assert "Not reverted." in revert(operator, removal)
    assert not ThrottleRule.objects.exists()
    ThrottleChange.objects.all().delete()
    line = ThrottleChange.objects.create(kind="settings", action="changed", words="x", before={}, after={"api": {}})
    assert "Revert" not in operator.get(LIST).content.decode()
    assert operator.post(url("revert", line.pk)).status_code == 403
