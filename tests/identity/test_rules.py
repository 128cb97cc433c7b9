"""Rules of the admin may have every key that this site can find, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from django_throttle.admin.rules import key_choices
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.sources import from_database
from tests.strategies import JOINED, KEYS

CALM = {"AGENT": False}


@pytest.fixture
def tenants(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**CALM, "TENANT": "user.tenant_id"}


@pytest.mark.usefixtures("tenants")
def test_they_are_offered_in_words() -> None:
    offered = dict(key_choices())
    assert {*KEYS} < {*offered}
    assert offered["user+ip"] == "Each combination of user and address"
    assert dict(key_choices("session+ip"))["session+ip"] == "Each combination of session and address"


@pytest.mark.django_db
class TestRows:
    @pytest.mark.usefixtures("tenants")
    @pytest.mark.parametrize("key", [*KEYS, "user+ip", "tenant+user", "+".join(JOINED)])
    def test_the_table_takes_them(self, key: str) -> None:
        event = "message" if key == "connection" else "request"
        row = ThrottleRule.objects.create(name="api", rate="5/min", key=key, events=(event,))
        row.full_clean()
        assert row.fault is None

    KEYS_OF_NOBODY = ["nobody", "user+everyone", "user+nobody"]

    @pytest.mark.parametrize("key", ["", "user+", "+ip", "user ip", *KEYS_OF_NOBODY])
    def test_and_nothing_else(self, key: str) -> None:
        with pytest.raises(ValidationError):
            ThrottleRule(name="api", rate="5/min", key=key).full_clean()
        if key not in self.KEYS_OF_NOBODY:  # the database knows how a key is written, and no key by name
            with pytest.raises(IntegrityError), transaction.atomic():
                ThrottleRule.objects.create(name="api", rate="5/min", key=key)

    @pytest.mark.parametrize("key", KEYS_OF_NOBODY)
    def test_a_key_of_another_version_is_stored_and_not_in_force(self, key: str) -> None:
        ThrottleRule.objects.create(name="api", rate="5/min", key=key)
        found = from_database()
        assert not found.rules and "key" in found.faults["api"]

    @pytest.mark.parametrize("options", [{"key": "tenant"}, {"key": "user+tenant"}, {"audience": ("tenant:acme",)}])
    def test_a_rule_by_tenant_needs_to_know_who_that_is(self, settings: Any, options: dict[str, Any]) -> None:
        settings.DJANGO_THROTTLE = CALM
        row = ThrottleRule.objects.create(name="api", rate="5/min", **options)
        assert "TENANT" in str(row.fault)
        settings.DJANGO_THROTTLE = {**CALM, "TENANT": "tenant"}
        assert row.fault is None
