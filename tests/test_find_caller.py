"""Whom an operator means."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_throttle.core import Override, Rule
from django_throttle.find_caller import UnknownTag, find_caller
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore

pytestmark = pytest.mark.django_db
RULES = Snapshot(
    [Rule("a", "1/s", key="shop.limits.plan"), Rule("b", "1/s", key="ip+shop.limits.size")],
    [Override(subject="ip:198.51.100.0/24", effect="block", number=1)],
)


def found(typed: str) -> str:
    return find_caller(typed, RULES, MemoryStore()).name


@pytest.mark.parametrize(
    ("typed", "ident"),
    [
        (" 203.0.113.9 ", "ip:203.0.113.9"),
        ("ip:2001:db8::1", "ip:2001:db8::/64"),
        ("everyone", "everyone"),
        ("tenant:acme", "tenant:acme"),
        ("shop.limits.plan:gold", "shop.limits.plan:gold"),
        ("ip+shop.limits.size:ip%3A1+2", "ip+shop.limits.size:ip%3A1+2"),
        ("user+ip:1+2", "user+ip:1+2"),
    ],
)
def test_idents(typed: str, ident: str) -> None:
    assert found(typed) == ident


def test_users_by_name_mail_and_tag(django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("anna", "anna@example.com")
    tag = ident_for_logs(f"user:{user.pk}")
    assert {found(typed) for typed in ("anna", "user:anna", "ANNA@example.com", tag, tag.upper())} == {
        f"user:{user.pk}"
    }
    assert found(ident_for_logs("everyone")) == "everyone"


def test_a_user_whose_name_looks_like_a_tag(django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("deadbeef")
    assert found("deadbeef") == f"user:{user.pk}"
    with pytest.raises(UnknownTag):
        found("deadbee0")


@pytest.mark.parametrize("typed", ["", "\x00", "a\x00", "x" * 2000, "order:1", "user:", "shop.limits.other:1", "<b>:1"])
def test_what_names_nobody_is_told_with_an_example(typed: str) -> None:
    with pytest.raises(ValidationError, match="user:42"):
        found(typed)
