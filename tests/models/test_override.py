"""What can be mistyped in an override is refused by the row and by the database; the rest is in force."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, transaction
from django.db.backends.base.operations import BaseDatabaseOperations
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.checks.settings import check_rows
from django_throttle.core import Override, Rate
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.models import ThrottleOverride
from django_throttle.rulebook import in_force
from tests.inside import forget_rules
from tests.raw_rows import force, write

pytestmark = pytest.mark.django_db

BLOCK = {"kind": "ip", "value": "192.0.2.7", "effect": "block"}
TIMES = {**BLOCK, "effect": "multiply", "factor": 2}
RATE = {**BLOCK, "effect": "replace", "rate": "5/min"}

# Options that make no sense, and the field under which an operator reads so.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**BLOCK, "kind": "shoe"}, "kind"),
    *(
        ({**BLOCK, "value": value}, "value")
        for value in ("", "somewhere", "192.0.2.256", "192.0.2.0/33", "0.0.0.0/0", "::/0", "2001:db8::1/128", "x" * 301)
    ),
    ({**BLOCK, "kind": "tenant", "value": "a\x00b"}, "value"),
    *(
        ({**BLOCK, "kind": "user", "value": value}, "value")
        for value in ("nobody", "4711", "9" * 40, "nobody@example.com")
    ),
    *(({**BLOCK, "rules": rules}, "rules") for rules in ((), ("x" * 1001,))),
    ({**BLOCK, "effect": "scold"}, "effect"),
    *(({**TIMES, "factor": factor}, "factor") for factor in (None, 0, -2, float("inf"), 10_000_000)),
    ({**BLOCK, "factor": 2}, "factor"),
    *(({**RATE, "rate": rate}, "rate") for rate in ("", "often", "0/min", "5/600w", "5/min, 6/min")),
    ({**BLOCK, "rate": "5/min"}, "rate"),
    *(({**RATE, "limit": limit}, "limit") for limit in (0, 10**18)),
    ({**BLOCK, "limit": 5}, "limit"),
    *(({**BLOCK, "reason": reason}, "reason") for reason in ("", "  ")),
]
# What only the override as a whole, or another table, can tell.
BEYOND_CONSTRAINTS = (
    {"value": "192.0.2.256"}, {"value": "192.0.2.0/33"}, {"value": "0.0.0.0/0"}, {"value": "::/0"}, {"kind": "user"},
    {"value": "2001:db8::1/128"}, {"kind": "tenant"}, {"rules": ("x" * 1001,)}, {"rate": "5/600w"},
    {"rate": "5/min, 6/min"},
)  # fmt: skip
CONSTRAINED = [one for one, _ in WRONG if not any(mark.items() <= one.items() for mark in BEYOND_CONSTRAINTS)]


def row(**options: Any) -> ThrottleOverride:
    return ThrottleOverride(**{"reason": "because", **options})


def cleaned(**options: Any) -> ThrottleOverride:
    found = row(**options)
    found.full_clean()
    return found


@pytest.fixture
def fresh_book() -> Iterator[None]:
    yield
    forget_rules()


class TestRefused:
    @pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options)[:90] for options, _ in WRONG])
    def test_under_the_field_where_it_is_mended(self, options: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as caught:
            row(**options).full_clean()
        assert next(iter(caught.value.message_dict)) == field
        assert all(message.strip() for message in caught.value.messages)

    @pytest.mark.parametrize("options", CONSTRAINED, ids=lambda options: str(options)[:90])
    def test_by_the_database_too(self, options: dict[str, Any]) -> None:
        with pytest.raises((IntegrityError, DataError)), transaction.atomic():
            ThrottleOverride.objects.bulk_create([row(**options)])

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("kind", "shoe"), ("kind", "api_key"),  # an address is no hash
            ("value", ""), ("value", "here"), ("rules", ""), ("effect", "scold"), ("effect", "replace"), ("factor", 0),
            ("factor", None), ("rate", "5/min"), ("limit", 7), ("reason", ""), ("reason", "   "), ("created_at", None),
        ],
    )  # fmt: skip
    def test_in_raw_sql_too(self, column: str, value: object) -> None:
        row(**TIMES).save()
        with pytest.raises(IntegrityError), transaction.atomic():
            write(ThrottleOverride, **{column: value})

    def test_two_users_that_one_text_may_mean(self, anna: User) -> None:
        User.objects.create_user(str(anna.pk), "other@example.com")
        with pytest.raises(ValidationError, match="Write what only one of them has"):
            cleaned(kind="user", value=str(anna.pk), effect="block")
        assert cleaned(kind="user", value="anna", effect="block").value == str(anna.pk)
        User.objects.create_user("annas-twin", "anna@example.com")
        with pytest.raises(ValidationError, match="annas-twin"):
            cleaned(kind="user", value="anna@example.com", effect="block")


class TestStored:
    def test_all_of_it_survives_the_table_and_fixtures(self) -> None:
        until = timezone.now() + timedelta(hours=2)
        made = cleaned(
            **{**RATE, "kind": "tenant", "value": "acme", "rate": "500/Min, 10/s", "limit": 9},
            rules=("api*", "chat"),
            until=until,
        )
        made.save()
        text = serializers.serialize("json", ThrottleOverride.objects.all())
        ThrottleOverride.objects.all().delete()
        for each in serializers.deserialize("json", text):
            each.save()
        assert ThrottleOverride.objects.get().as_override() == Override(
            subject="tenant:acme",
            effect="replace",
            rules=("api*", "chat"),
            rates=(Rate(500, 60), Rate(10, 1)),
            limit=9,
            # A fixture has milliseconds.
            until=until.replace(microsecond=until.microsecond // 1000 * 1000).timestamp(),
            number=made.pk or ThrottleOverride.objects.get().pk,
        )

    def test_limits_fit_their_columns(self) -> None:
        saved = cleaned(**{**RATE, "limit": MAX_LIMIT, "rate": f"{MAX_LIMIT}/min"})
        saved.save()
        saved.refresh_from_db()
        assert (saved.limit, saved.rate) == (MAX_LIMIT, f"{MAX_LIMIT}/min")
        column = ThrottleOverride._meta.get_field("limit")
        assert BaseDatabaseOperations.integer_field_ranges[column.get_internal_type()][1] >= MAX_LIMIT
        saved.limit = MAX_LIMIT + 1
        with pytest.raises(ValidationError, match="limit"):
            saved.full_clean()


@pytest.mark.usefixtures("fresh_book")
class TestInForce:
    def subjects(self) -> list[str]:
        return [override.subject for override in rulebook.refresh().overrides.all]

    def test_what_has_not_ended(self) -> None:
        now = timezone.now()
        for value, until in (("1", None), ("2", now + timedelta(hours=1)), ("3", now), ("4", now - timedelta(days=1))):
            row(kind="tenant", value=value, effect="block", until=until).save()
        assert self.subjects() == ["tenant:2", "tenant:1"]
        assert ThrottleOverride.objects.expired().count() == 2

    def test_a_bad_row_is_skipped_with_one_line_and_the_others_work(self, caplog: pytest.LogCaptureFixture) -> None:
        row(kind="tenant", value="good", effect="block").save()
        bad = ThrottleOverride.objects.create(**{**BLOCK, "reason": "x"})
        force(ThrottleOverride, {"id": bad.pk}, value="x")
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                assert self.subjects() == ["tenant:good"]
        said = f"override {bad.pk} is skipped, correct it: 'x' is neither an address nor a network"
        assert [record.getMessage() for record in caplog.records] == [said]
        bad.refresh_from_db()
        assert bad.fault and bad.meaning.startswith("Not in force: 'x'")
        (warning,) = check_rows(None, databases=["default"])
        assert warning.id == "django_throttle.W065"

    def test_edits_of_every_kind_are_told_once_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str] = []
        monkeypatch.setattr(in_force, "changed", lambda: told.append("told"))
        from django.test import TestCase

        edits = (
            lambda: row(**BLOCK).save(),
            lambda: ThrottleOverride.objects.bulk_create([row(**BLOCK), row(**TIMES)]),
            lambda: ThrottleOverride.objects.update(until=timezone.now()),
            lambda: ThrottleOverride.objects.bulk_update(ThrottleOverride.objects.all(), ["reason"]),
            lambda: ThrottleOverride.objects.first().delete(),  # type: ignore[union-attr]
            lambda: ThrottleOverride.objects.all().delete(),
        )
        for number, edit in enumerate(edits, 1):
            with TestCase.captureOnCommitCallbacks(execute=True):
                edit()
                assert len(told) == number - 1
            assert len(told) == number
