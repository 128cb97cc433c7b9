"""Every way to edit a row in Python has a line in the history, in the transaction of the edit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core import serializers
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from django_throttle import history
from django_throttle.history.edits import state
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule

pytestmark = pytest.mark.django_db


def lines() -> list[tuple[str, str, str]]:
    """The oldest first."""
    return list(ThrottleChange.objects.order_by("pk").values_list("name", "action", "words"))


def saved(name: str = "api", **options: Any) -> ThrottleRule:
    return ThrottleRule.objects.create(**{"name": name, "rate": "5/min", **options})


def test_a_rule_is_added_changed_and_removed() -> None:
    row = saved()
    meaning = row.meaning
    row.rate, row.scopes = "7 / Minute", ("search", "chat")
    row.save()
    row.save()  # which changes nothing
    row.delete()
    assert [line[:2] for line in lines()] == [("api", "added"), ("api", "changed"), ("api", "removed")]
    assert lines()[0][2] == meaning
    assert lines()[1][2] == "rate: 5/min → 7/min; scopes: default → search, chat"
    added, changed, removed = ThrottleChange.objects.order_by("pk")
    assert added.before is None
    assert added.after == changed.before == {"name": "api", "rate": "5/min"}
    assert changed.after == removed.before == {"name": "api", "rate": "7/min", "scopes": ["search", "chat"]}
    assert removed.after is None


WAYS: dict[str, Callable[[], object]] = {
    "update": lambda: ThrottleRule.objects.filter(name="api").update(rate="9/min"),
    "update of an expression": lambda: ThrottleRule.objects.filter(name="sockets").update(limit=F("limit") + 1),
    "update_or_create": lambda: ThrottleRule.objects.update_or_create(name="api", defaults={"rate": "9/min"}),
    "bulk_update": lambda: ThrottleRule.objects.bulk_update([edited("api", rate="9/min")], ["rate"]),
    "bulk_create": lambda: ThrottleRule.objects.bulk_create([ThrottleRule(name="new", rate="9/min")]),
    "delete of a queryset": lambda: ThrottleRule.objects.filter(name="api").delete(),
    "a fixture": lambda: [one.save() for one in serializers.deserialize("json", fixture())],
    "update_fields": lambda: edited("api", rate="9/min").save(update_fields=["rate"]),
}


def edited(name: str, **values: Any) -> ThrottleRule:
    row = ThrottleRule.objects.get(name=name)
    for field, value in values.items():
        setattr(row, field, value)
    return row


def fixture() -> str:
    return serializers.serialize("json", [edited("api", rate="9/min")])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_edit_has_one_line(way: Callable[[], object]) -> None:
    saved()
    saved("sockets", rate="", limit=5, algorithm="concurrency", events=("connection",))
    ThrottleChange.objects.all().delete()
    way()
    ((name, action, words),) = lines()
    assert (name, action) in (("api", "changed"), ("api", "removed"), ("sockets", "changed"), ("new", "added"))
    assert words in ("rate: 5/min → 9/min", "limit: 5 → 6") or action != "changed"


def test_an_edit_that_fails_has_no_line() -> None:
    saved()
    with pytest.raises(IntegrityError), transaction.atomic():
        saved()
    with pytest.raises(IntegrityError), transaction.atomic():
        ThrottleRule.objects.update(limit=0)
    assert len(lines()) == 1


def test_a_transaction_that_is_rolled_back_has_no_line() -> None:
    with transaction.atomic():
        saved()
        ThrottleRule.objects.update(rate="1/min")
        assert len(lines()) == 2
        transaction.set_rollback(True)
    assert lines() == []


def test_an_override_has_its_number_and_subject() -> None:
    until = timezone.now() + timedelta(hours=2)
    row = ThrottleOverride.objects.create(kind="user", value="42", effect="block", until=until, reason="abuse")
    ThrottleOverride.objects.filter(pk=row.pk).update(until=None)
    added, ended = ThrottleChange.objects.order_by("pk")
    assert (added.kind, added.name, added.row) == ("override", "User 42", row.pk)
    assert added.after["until"] == until.isoformat()
    assert ended.words == f"until: {until:%Y-%m-%d %H:%M:%S} UTC → default"


def test_edits_are_by_whoever_is_said_around_them() -> None:
    with history.editing("anna", "command", "tidy"):
        saved()
    assert ThrottleChange.objects.values_list("who", "via", "reason").get() == ("anna", "command", "tidy")


def test_the_state_of_a_row_is_what_its_columns_hold_once_it_is_stored() -> None:
    row = ThrottleRule(name="api", rate="5 / Minute", scopes="a, b", methods="get")
    assert state(row) == {"name": "api", "rate": "5/min", "scopes": ["a", "b"], "methods": ["GET"]}
    assert state(ThrottleRule(name="api", rate="what"))["rate"] == "what"


def test_an_update_of_many_takes_few_queries(django_assert_max_num_queries: Any) -> None:
    ThrottleRule.objects.bulk_create([ThrottleRule(name=f"r{number}", rate="5/min") for number in range(300)])
    with django_assert_max_num_queries(10):
        ThrottleRule.objects.update(rate="6/min")
    assert len(lines()) == 600
