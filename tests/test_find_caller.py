"""Whom an operator means."""

from __future__ import annotations

import re
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
    [
        Rule("a", "1/s", key="shop.limits.plan"),
        Rule("b", "1/s", key="ip+shop.limits.size"),
        Rule("c", "1/s", key="django_throttle.logins.login_name"),
    ],
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
        (
            "ip+shop.limits.size:ip:192.0.2.1+shop.limits.size:a%2Bb",
            "ip+shop.limits.size:ip:192.0.2.1+shop.limits.size:a%2Bb",
        ),
        ("api_key+tenant:ip:2001:db8::1+tenant:acme", "api_key+tenant:ip:2001:db8::/64+tenant:acme"),
        ("tenant+user_or_ip:tenant:a+ip:192.0.2.1", "tenant+user_or_ip:tenant:a+ip:192.0.2.1"),
        ("tenant+session:~" + "0a" * 32, "tenant+session:~" + "0a" * 32),
        ("api_key:" + "aB3_" * 5 + "aB", "api_key:" + "aB3_" * 5 + "aB"),
        ("django_throttle.logins.login_name: Ánna ", "django_throttle.logins.login_name:anna"),
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


@pytest.mark.parametrize(
    "typed", ["", "\x00", "a\x00", "x" * 2000, "order:1", "user:", "shop.limits.other:1", "<b>:1", "login_name:a"]
)
def test_what_names_nobody_is_told_with_an_example(typed: str) -> None:
    with pytest.raises(ValidationError, match="user:42"):
        found(typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tenant+user:acme+1", "'tenant+user' is written like tenant+user:tenant:acme+user:42"),
        ("tenant+user:acme,1", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:user:42+tenant:acme", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:tenant:acme+user:", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:tenant:acme+user:42+user:42", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:tenant:acme+user:nobody", "No user has the id, name or e-mail address 'nobody'"),
        ("ip+shop.limits.size:ip:192.0.2.1+2", "like ip+shop.limits.size:ip:203.0.113.9+shop.limits.size:VALUE"),
        ("user_or_ip:42", "'user_or_ip' is written like user:42"),
        ("tenant+user_or_ip:tenant:a+user_or_ip:5", "like tenant+user_or_ip:tenant:acme+user:42"),
        ("ip:192.0.2.300", "ip:203.0.113.9"),
    ],
)
def test_what_is_written_in_another_form_is_told_with_the_form(typed: str, said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        found(typed)


def test_a_part_of_a_joined_one_is_found_as_by_itself(django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("anna")
    assert found("tenant+user:tenant:acme+user:anna") == f"tenant+user:tenant:acme+user:{user.pk}"
