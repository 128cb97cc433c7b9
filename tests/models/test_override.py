"""What can be mistyped in an override is refused by the row and by the database; the rest is in force."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, transaction
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.checks.settings import check_rows
from django_throttle.conf import conf
from django_throttle.core import Override, Rate
from django_throttle.core.key import ident_hash, secret_bytes
from django_throttle.identity.keys import api_key
from django_throttle.models import ThrottleOverride
from tests.inside import forget_rules
from tests.models.test_rule import wrong
from tests.raw_rows import force

pytestmark = pytest.mark.django_db
BLOCK = {"kind": "ip", "value": "192.0.2.7", "effect": "block"}
TIMES = {**BLOCK, "effect": "multiply", "factor": 2}
RATE = {**BLOCK, "effect": "replace", "rate": "5/min"}
ADDRESSES = ["somewhere", "192.0.2.256", "192.0.2.0/33", "0.0.0.0/0", "::/0", "2001:db8::1/128", "x" * 301]
WRONG = [
    *wrong(BLOCK, kind=["shoe"], value=["", *ADDRESSES], rules=[(), ("x" * 1001,)], effect=["scold"], factor=[2]),
    *wrong(BLOCK, rate=["5/min"], limit=[5], reason=["", "  "]),
    *wrong({**BLOCK, "kind": "tenant"}, value=["a\x00b"]),
    *wrong({**BLOCK, "kind": "user"}, value=["nobody", "4711", "9" * 40, "nobody@example.com"]),
    *wrong(TIMES, factor=[None, 0, -2, float("inf"), 10_000_000]),
    *wrong(RATE, rate=["", "often", "0/min", "5/600w", "5/min, 6/min"], limit=[0, 10**18]),
]
# What only the override as a whole, or another table, can tell.
BEYOND_CONSTRAINTS = [
    *({"value": value} for value in ADDRESSES[1:-1]),
    *({"kind": kind} for kind in ("user", "tenant", "shoe")),
    *({"rate": rate} for rate in ("5/600w", "5/min, 6/min")),
    {"rules": ("x" * 1001,)},
]


def row(**options: Any) -> ThrottleOverride:
    return ThrottleOverride(**{"reason": "because", **options})


def cleaned(**options: Any) -> ThrottleOverride:
    found = row(**{"effect": "block", **options})
    found.full_clean()
    return found


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna", "Anna@example.com")


@pytest.fixture(autouse=True)
def fresh_book() -> Iterator[None]:
    yield
    forget_rules()


class TestRefused:
    @pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options)[:90] for options, _ in WRONG])
    def test_under_the_field_where_it_is_mended_and_by_the_database(self, options: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as caught:
            row(**options).full_clean()
        assert next(iter(caught.value.message_dict)) == field
        assert all(message.strip() for message in caught.value.messages)
        if not any(mark.items() <= options.items() for mark in BEYOND_CONSTRAINTS):
            with pytest.raises((IntegrityError, DataError)), transaction.atomic():
                ThrottleOverride.objects.bulk_create([row(**options)])

    def test_a_kind_of_another_version_is_stored_and_not_in_force(self) -> None:
        row(**{**BLOCK, "kind": "shoe"}).save()
        assert "shoe" in str(ThrottleOverride.objects.get().fault)
        assert not rulebook.refresh().overrides.all

    def test_two_users_that_one_text_may_mean(self, anna: User) -> None:
        User.objects.create_user(str(anna.pk), "other@example.com")
        with pytest.raises(ValidationError, match="Write what only one of them has"):
            cleaned(kind="user", value=str(anna.pk))
        assert cleaned(kind="user", value="anna").value == str(anna.pk)
        User.objects.create_user("annas-twin", "anna@example.com")
        with pytest.raises(ValidationError, match="annas-twin"):
            cleaned(kind="user", value="anna@example.com")


class TestStored:
    @pytest.mark.parametrize("typed", ["anna", " anna ", "anna@example.com", "ANNA@EXAMPLE.COM", "{pk}", "user:{pk}"])
    def test_a_user_is_stored_by_the_id(self, anna: User, typed: str) -> None:
        found = cleaned(kind="user", value=typed.format(pk=anna.pk))
        assert found.value == str(anna.pk)
        assert found.as_override().subject == f"user:{anna.pk}"

    @pytest.mark.parametrize(
        ("typed", "stored"),
        [
            *(
                ("192.0.2.7", "192.0.2.7"),
                ("ip:192.0.2.7", "192.0.2.7"),
                ("192.0.2.7:443", "192.0.2.7"),
                ("::ffff:192.0.2.7", "192.0.2.7"),
            ),
            *(("192.0.2.7/32", "192.0.2.7"), ("192.0.2.7/24", "192.0.2.0/24")),
            *(("192.0.2.0/255.255.255.0", "192.0.2.0/24"), ("::ffff:192.0.2.0/120", "192.0.2.0/24")),
            *(("2001:DB8::1", "2001:db8::/64"), ("[2001:db8::1]", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64")),
            *(("2001:db8::1/64", "2001:db8::/64"), ("2001:db8::1/32", "2001:db8::/32")),
        ],
    )
    def test_an_address_has_one_notation(self, typed: str, stored: str) -> None:
        found = cleaned(kind="ip", value=typed)
        assert (found.value, found.as_override().subject) == (stored, f"ip:{stored}")
        found.save()  # which the constraint lets through

    def test_an_address_is_as_wide_as_callers_are_told_apart(self, settings: Any) -> None:
        found = cleaned(kind="ip", value="2001:db8:0:1::1")
        settings.DJANGO_THROTTLE = {"IPV6_PREFIX": 48}
        assert found.as_override().subject == "ip:2001:db8::/48"

    def test_of_an_api_key_only_a_keyed_hash(self) -> None:
        found = cleaned(kind="api_key", value="canary-4711")
        found.save()
        tag = ident_hash("api_key:canary-4711", secret_bytes(conf().KEY_SECRET))
        assert found.as_override().subject == f"api_key:{tag}" == api_key("canary-4711")
        assert "canary" not in str(ThrottleOverride.objects.values()) + str(found) + repr(found.as_override())
        found.full_clean()  # saving it again does not hash the hash
        assert found.value == cleaned(kind="api_key", value=f"api_key:{tag}").value == f"hash:{tag}"
        assert cleaned(kind="tenant", value="tenant:acme").value == "acme"

    def test_what_is_stored_is_not_asked_for_again(self, anna: User) -> None:
        cleaned(kind="user", value="anna").save()
        anna.delete()
        found = ThrottleOverride.objects.get()
        found.reason = "gone, and for good"
        found.full_clean()
        found.value = "someone"
        with pytest.raises(ValidationError):
            found.full_clean()

    def test_all_of_it_survives_the_table_and_fixtures(self) -> None:
        until = timezone.now().replace(microsecond=123_000) + timedelta(hours=2)  # a fixture has milliseconds
        options = {"kind": "tenant", "value": "acme", "rate": "500/Min, 10/s", "limit": 9, "rules": ("api*", "chat")}
        cleaned(**{**RATE, **options}, until=until).save()
        text = serializers.serialize("json", ThrottleOverride.objects.all())
        ThrottleOverride.objects.all().delete()
        for each in serializers.deserialize("json", text):
            each.save()
        again = ThrottleOverride.objects.get()
        rates = (Rate(500, 60), Rate(10, 1))
        known: dict[str, Any] = {"subject": "tenant:acme", "effect": "replace", "rules": ("api*", "chat"), "limit": 9}
        assert again.as_override() == Override(**known, rates=rates, until=until.timestamp(), number=again.pk)


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
        assert caplog.messages == [said]
        bad.refresh_from_db()
        assert bad.fault and bad.meaning.startswith("Not in force: 'x'")
        (warning,) = check_rows(None, databases=["default"])
        assert warning.id == "django_throttle.W004"
