"""Whom an override is for: what is typed of users, addresses and keys, and what is stored of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from django_throttle.conf import conf
from django_throttle.core.key import ident_tag, secret_bytes
from django_throttle.identity.keys import api_key
from django_throttle.models import ThrottleOverride
from tests.models.test_override import cleaned

pytestmark = pytest.mark.django_db


def upper_name(user: User) -> str:
    return user.get_username().upper()


class TestStored:
    @pytest.mark.parametrize("typed", ["anna", " anna ", "anna@example.com", "ANNA@EXAMPLE.COM", "{pk}"])
    def test_a_user_is_stored_by_the_id(self, anna: User, typed: str) -> None:
        found = cleaned(kind="user", value=typed.format(pk=anna.pk), effect="block")
        assert found.value == str(anna.pk)
        assert found.as_override().subject == f"user:{anna.pk}"

    def test_a_site_may_count_its_users_under_something_else(self, anna: User, settings: Any) -> None:
        settings.DJANGO_THROTTLE = {"USER_IDENT": "tests.models.test_subjects.upper_name"}
        assert cleaned(kind="user", value="anna", effect="block").as_override().subject == "user:ANNA"

    @pytest.mark.parametrize(
        ("typed", "stored"),
        [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:443", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("192.0.2.0/255.255.255.0", "192.0.2.0/24"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("2001:DB8::1", "2001:db8::/64"),
            ("[2001:db8::1]", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("2001:db8::1/32", "2001:db8::/32"),
        ],
    )
    def test_an_address_has_one_notation(self, typed: str, stored: str) -> None:
        found = cleaned(kind="ip", value=typed, effect="block")
        assert found.value == stored
        assert found.as_override().subject == f"ip:{stored}"
        found.save()  # which the constraint lets through

    def test_as_wide_as_callers_are_told_apart(self, settings: Any) -> None:
        found = cleaned(kind="ip", value="2001:db8:0:1::1", effect="block")
        settings.DJANGO_THROTTLE = {"IPV6_PREFIX": 48}
        assert found.as_override().subject == "ip:2001:db8::/48"

    def test_of_an_api_key_only_a_keyed_hash(self) -> None:
        found = cleaned(kind="api_key", value="canary-4711", effect="block")
        found.save()
        tag = ident_tag("api_key:canary-4711", secret_bytes(conf().KEY_SECRET))
        assert found.value == f"hash:{tag}"
        assert found.as_override().subject == f"api_key:{tag}" == api_key("canary-4711")
        assert "canary" not in str(ThrottleOverride.objects.values()) + str(found) + repr(found.as_override())
        found.full_clean()  # saving it again does not hash the hash
        assert found.value == f"hash:{tag}"

    def test_what_is_stored_is_not_asked_for_again(self, anna: User) -> None:
        cleaned(kind="user", value="anna", effect="block").save()
        anna.delete()
        found = ThrottleOverride.objects.get()
        found.reason = "gone, and for good"
        found.full_clean()
        found.value = "someone"
        with pytest.raises(ValidationError):
            found.full_clean()
