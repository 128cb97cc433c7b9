"""A caller of whom only the ident is known."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.identity.known_caller import KnownCaller

pytestmark = pytest.mark.django_db


def test_an_ident_counts_under_the_keys_that_give_it() -> None:
    keys = ("user", "ip", "user_or_ip", "api_key", "session", "tenant", "everyone", "user+ip", "ip+user")
    found = {
        name: [key for key in keys if KnownCaller(name).ident(key)] for name in ("user:1", "ip:::1", "user+ip:1+2")
    }
    assert found == {
        "user:1": ["user", "user_or_ip", "api_key", "everyone"],
        "ip:::1": ["ip", "user_or_ip", "api_key", "everyone"],
        "user+ip:1+2": ["everyone", "user+ip"],
    }
    assert KnownCaller("everyone").ident("everyone") == "everyone"


def test_what_is_known_of_a_user(django_user_model: Any, settings: Any) -> None:
    user = django_user_model.objects.create_user("anna", is_staff=True)
    known = KnownCaller(f"user:{user.pk}")
    assert known.is_certain and known.is_("staff") and known.is_("authenticated") and not known.is_("anonymous")
    settings.DJANGO_THROTTLE = {"TENANT": "user.username"}
    assert known.ident("tenant") == "tenant:anna"
    assert known.ident("tenant+user") == f"tenant+user:tenant:anna+user:{user.pk}"
    settings.DJANGO_THROTTLE = {"USER_IDENT": "builtins.str"}
    assert not KnownCaller(f"user:{user.pk}").is_certain


@pytest.mark.parametrize("value", ["\x00", "9" * 400, "\ud800", "x", "-1", ""])
def test_a_user_who_cannot_be(value: str) -> None:
    assert not KnownCaller(f"user:{value}").is_certain


def test_why_a_key_does_not_count() -> None:
    assert "ask for user+ip:" in KnownCaller("user:1").why_not("user+ip")
    assert "by itself" in KnownCaller("user:1").why_not("connection")
