"""The admin's pages of the history: edits of every page have a line, and one click takes one back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from tests.admin.conftest import user

pytestmark = pytest.mark.django_db
LIST = reverse("admin:django_throttle_throttlechange_changelist")
HOSTILE = "<script>alert(1)</script>"


def rule_page(row: ThrottleRule) -> str:
    return reverse("admin:django_throttle_throttlerule_change", args=[row.pk])


def made(name: str = "api", rate: str = "5/min") -> ThrottleRule:
    return ThrottleRule.objects.create(name=name, rate=rate)


def form(client: Client, page: str, **values: Any) -> dict[str, Any]:
    """What a browser posts from this form, with these values in it."""
    fields = client.get(page).context["adminform"].form
    shown = {name: fields[name].value() for name in fields.fields}
    return {name: "" if value is None else value for name, value in {**shown, **values}.items() if value is not False}


def revert(client: Client, line: ThrottleChange, **posted: str) -> str:
    answer = client.post(reverse("admin:django_throttle_revert", args=[line.pk]), posted, follow=True)
    return " ".join(map(str, answer.context["messages"]))


def test_the_form_says_who_and_why(operator: Client) -> None:
    row = made()
    answer = operator.post(rule_page(row), form(operator, rule_page(row), rate="7/min", edit_reason="slow\u2028db"))
    assert answer.status_code == 302
    line = ThrottleChange.objects.first()
    assert line is not None
    assert (line.who, line.via, line.reason, line.words) == ("somebody", "admin", "slow\u2028db", "rate: 5/min → 7/min")


def test_the_list_and_its_actions_say_who(operator: Client) -> None:
    row = made()
    page = reverse("admin:django_throttle_throttlerule_changelist")
    posted = {
        "form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": row.pk, "form-0-rate": "8/min",
        "form-0-limit": "", "form-0-action": "shadow", "form-0-enabled": "on", "_save": "Save",
    }  # fmt: skip
    assert operator.post(page, posted).status_code == 302
    operator.post(page, {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"})
    told = list(ThrottleChange.objects.values_list("who", "action")[:2])
    assert told == [("somebody", "removed"), ("somebody", "changed")]


def test_the_actions_of_overrides_say_who(operator: Client) -> None:
    row = ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", effect="block", reason="abuse")
    page = reverse("admin:django_throttle_throttleoverride_changelist")
    operator.post(page, {"action": "end_now", "_selected_action": row.pk})
    line = ThrottleChange.objects.first()
    assert line is not None
    assert (line.who, line.name, line.action) == ("somebody", "Address 192.0.2.1", "changed")
    assert "Revert" in operator.get(LIST).content.decode()
    assert "Reverted" in revert(operator, line)
    row.refresh_from_db()
    assert row.until is None


def test_one_click_reverts_an_edit_a_removal_and_an_addition(operator: Client) -> None:
    row = made()
    ThrottleRule.objects.update(rate="7/min")
    edit = ThrottleChange.objects.latest("pk")
    assert revert(operator, edit) == "Reverted: rate: 7/min → 5/min."
    reverted = ThrottleChange.objects.latest("pk")
    assert (reverted.action, reverted.who, reverted.reason) == ("reverted", "somebody", f"revert of change {edit.pk}")
    assert "nothing to revert" in revert(operator, edit)
    row.delete()
    removal = ThrottleChange.objects.latest("pk")
    revert(operator, removal)
    assert ThrottleRule.objects.get().rate == "5/min"
    revert(operator, ThrottleChange.objects.earliest("pk"))
    assert not ThrottleRule.objects.exists()


def test_a_revert_is_told_in_the_language_of_the_reader(operator: Client) -> None:
    row = made()
    ThrottleRule.objects.update(enforce_at=2.0, rate="7/min")
    addition, edit = ThrottleChange.objects.order_by("pk")
    with translation.override("de"):
        page = operator.get(LIST).content.decode()
        assert "2 Änderungen" in page and "geändert" in page and ">changed<" not in page
        assert revert(operator, edit) == "Zurückgenommen: Rate: 7/min → 5/min; Ablehnen ab: 2.0 → Standardwert."
        assert revert(operator, addition, confirmed="1") == "Zurückgenommen: Regel api ist entfernt."
    row.save(force_insert=True)
    row.delete()
    assert revert(operator, ThrottleChange.objects.latest("pk")) == "Reverted: Rule api is there again."


def test_what_has_changed_since_is_reverted_only_when_confirmed(operator: Client) -> None:
    made()
    ThrottleRule.objects.update(rate="7/min")
    edit = ThrottleChange.objects.latest("pk")
    ThrottleRule.objects.update(rate="9/min")
    assert revert(operator, edit) == "Not reverted. It has been edited since: rate: 7/min → 9/min."
    assert ThrottleRule.objects.get().rate == "9/min"
    page = reverse("admin:django_throttle_throttlechange_change", args=[edit.pk])
    assert "Revert all the same" in operator.get(f"{page}?confirm=1").content.decode()
    revert(operator, edit, confirmed="1")
    assert ThrottleRule.objects.get().rate == "5/min"


def test_what_would_be_invalid_is_not_reverted(operator: Client) -> None:
    made()
    ThrottleRule.objects.all().delete()
    removal = ThrottleChange.objects.latest("pk")
    ThrottleChange.objects.filter(pk=removal.pk).update(before={"name": "api", "rate": "soon"})
    assert "Not reverted." in revert(operator, removal)
    assert not ThrottleRule.objects.exists()


def test_lines_that_are_no_edits_have_no_button(operator: Client) -> None:
    line = ThrottleChange.objects.create(kind="settings", action="changed", words="x", before={}, after={"api": {}})
    assert "Revert" not in operator.get(LIST).content.decode()
    assert operator.post(reverse("admin:django_throttle_revert", args=[line.pk])).status_code == 403


@pytest.mark.parametrize("rights", [("view_throttlerule",), ("view_throttlerule", "change_throttlerule")])
def test_who_may_see_and_who_may_revert(client: Client, rights: tuple[str, ...]) -> None:
    client.force_login(user(*rights))
    made()
    ThrottleRule.objects.update(rate="7/min")
    ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", effect="block", reason="abuse")
    page = client.get(LIST).content.decode()
    assert "rate: 5/min → 7/min" in page
    assert "192.0.2.1" not in page
    edit = ThrottleChange.objects.get(action="changed")
    may = len(rights) == 2
    assert page.count("formaction") == may, "an addition is reverted by whoever may delete"
    answer = client.post(reverse("admin:django_throttle_revert", args=[edit.pk]))
    assert answer.status_code == (302 if may else 403)
    assert client.get(reverse("admin:django_throttle_throttlechange_change", args=[edit.pk])).status_code == 200
    assert client.get(reverse("admin:django_throttle_revert", args=[edit.pk])).status_code == 405


def test_others_see_nothing(client: Client) -> None:
    client.force_login(user())
    assert client.get(LIST).status_code == 403


def test_the_forms_button_leads_to_the_lines_of_the_row(operator: Client) -> None:
    row = made()
    made("other")
    answer = operator.get(reverse("admin:django_throttle_throttlerule_history", args=[row.pk]), follow=True)
    page = answer.content.decode()
    assert answer.redirect_chain
    assert "Rule api" in page
    assert "Rule other" not in page


def test_hostile_texts_are_inert(operator: Client) -> None:
    ThrottleRule.objects.bulk_create([ThrottleRule(name=HOSTILE[:30], rate="5/min", description=HOSTILE)])
    line = ThrottleChange.objects.get()
    line.who, line.reason, line.words = HOSTILE, HOSTILE, HOSTILE
    line.save()
    for page in (LIST, f"{LIST}?q={HOSTILE}", reverse("admin:django_throttle_throttlechange_change", args=[line.pk])):
        text = operator.get(page).content.decode()
        assert HOSTILE not in text
        assert re.search("&lt;script", text)
    assert operator.get(f"{LIST}?q=%00").status_code == 200
    assert operator.get(f"{LIST}?who__exact=%00").status_code == 200


def test_view_only_staff_have_no_field_for_a_reason(client: Client) -> None:
    client.force_login(user("view_throttlerule", "view_throttleoverride"))
    row = made()
    assert "edit_reason" not in client.get(rule_page(row)).content.decode()
    over = ThrottleOverride.objects.create(kind="ip", value="192.0.2.1", effect="block", reason="abuse")
    page = client.get(reverse("admin:django_throttle_throttleoverride_change", args=[over.pk]))
    assert "edit_reason" not in page.content.decode()
