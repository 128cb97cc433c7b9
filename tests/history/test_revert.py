"""A revert puts a row back to what it was, as an edit like any other."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from django_throttle import history
from django_throttle.history.edits import state
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule

pytestmark = pytest.mark.django_db
OPTIONS = {"scopes": ("a", "b"), "methods": ("GET",), "warn_at": (0.5, 0.8), "refund_on": ("5xx",)}


def last() -> ThrottleChange:
    return ThrottleChange.objects.latest("pk")


def test_every_kind_of_column_comes_back_and_a_revert_of_a_revert_too() -> None:
    row = ThrottleRule.objects.create(name="api", rate="5/min, 50/hour", **OPTIONS)
    before = state(row)
    row.delete()
    removal = last()
    history.revert(removal)
    again = ThrottleRule.objects.get()
    assert (state(again), again.pk) == (before, removal.row)
    history.revert(last())
    assert not ThrottleRule.objects.exists()


def test_a_renamed_rule_gets_its_name_back() -> None:
    ThrottleRule.objects.create(name="api", rate="5/min")
    ThrottleRule.objects.update(name="site")
    history.revert(last())
    assert ThrottleRule.objects.get().name == "api"


def test_a_rule_that_was_made_again_is_only_replaced_when_confirmed() -> None:
    ThrottleRule.objects.create(name="api", rate="5/min").delete()
    removal = last()
    ThrottleRule.objects.create(name="api", rate="9/min")
    with pytest.raises(ValidationError, match="There is one again since") as caught:
        history.revert(removal)
    assert caught.value.code == history.CHANGED
    history.revert(removal, confirmed=True)
    assert ThrottleRule.objects.get().rate == "5/min"


def test_an_override_for_an_api_key_keeps_its_hash() -> None:
    row = ThrottleOverride(kind="api_key", value="sesame-sesame", effect="block", reason="leaked")
    row.full_clean()
    row.save()
    row.delete()
    assert "sesame" not in str(last().before)
    history.revert(last())
    again = ThrottleOverride.objects.get()
    assert again.value == row.value


def test_a_user_who_is_gone_does_not_keep_an_override_from_coming_back() -> None:
    row = ThrottleOverride.objects.create(kind="user", value="987", effect="block", reason="abuse")
    row.delete()
    history.revert(last())
    assert ThrottleOverride.objects.get().value == "987"


def test_columns_that_there_are_no_longer_are_left_out() -> None:
    ThrottleRule.objects.create(name="api", rate="5/min")
    ThrottleRule.objects.update(rate="9/min")
    ThrottleChange.objects.filter(pk=last().pk).update(before={"name": "api", "rate": "5/min", "gone": 3})
    history.revert(last())
    assert ThrottleRule.objects.get().rate == "5/min"


@pytest.mark.parametrize("kind", ["settings", "rule"])
def test_a_line_that_is_no_edit_is_refused(kind: str) -> None:
    history.record(kind, "api", "seen", "words")
    with pytest.raises(ValidationError, match="nothing to revert"):
        history.revert(last())
