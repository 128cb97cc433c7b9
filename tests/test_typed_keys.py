"""API keys that are typed name the row or the key that calls count under, or nothing, which is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.test import RequestFactory
from rest_framework.authentication import TokenAuthentication

from django_throttle import rulebook
from django_throttle.core import Override
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidIdent, InvalidRule
from django_throttle.find_caller import read_ident
from django_throttle.identity.keys import api_key, key_types
from django_throttle.models import ThrottleOverride
from django_throttle.models.override import override_warnings
from django_throttle.testing import override_rules, use_up

pytestmark = pytest.mark.django_db

KEYS = {"keys": {"rate": "4/min", "key": "api_key", "plans": {"tests.test_typed_keys.plans:large": "9/min"}}}
FROM_GROUP = {"rate": "4/min", "key": "user", "plans": {"group:large": "9/min"}}


def plans(request: Any) -> str:
    return "large" if request.headers.get("Plan") else ""


@pytest.fixture
def row() -> Iterator[Group]:
    """A row that a view of this process has taken for an API key."""
    key_types.clear()
    group = Group.objects.create(pk=5, name="secret-of-acme")
    with override_rules(KEYS):
        assert call(group).status_code == 200
    yield group
    key_types.clear()


@throttle("keys")
def view(request: Any) -> HttpResponse:
    return HttpResponse()


def call(accepted: Any = None, user: Any = None, **headers: str) -> Any:
    request: Any = RequestFactory().get("/", headers=headers)
    request.auth, request.user = accepted, user or User()
    return view(request)


def typed(value: str) -> ThrottleOverride:
    override = ThrottleOverride(kind="api_key", value=value, rules="*", effect="block", reason="test")
    override.full_clean()
    return override


@pytest.mark.parametrize("text", ["auth.group:5", "Auth.Group:05", "secret-of-acme"])
def test_a_row_and_its_key_are_what_its_calls_count_under(text: str, row: Group) -> None:
    assert typed(text).as_override().subject == read_ident(f"api_key:{text}") == api_key(row)
    assert list(override_warnings(typed(text), [])) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auth.group:6", "auth.group has no row '6'"),
        ("auth.grup:5", "no model 'auth.grup'; did you mean auth.group?"),
        ("shop.apikey:5", "no model 'shop.apikey'"),
    ],
)
def test_what_names_nothing_is_refused(text: str, said: str, row: Group) -> None:
    for ask in (typed, lambda value: read_ident(f"api_key:{value}")):
        with pytest.raises(ValidationError, match=said.replace("?", r"\?")):
            ask(text)
    with pytest.raises(InvalidIdent, match=said.replace("?", r"\?")), override_rules(KEYS):
        use_up("keys", f"api_key:{text}")
    assert read_ident(f"api_key:{text}", checks=False).startswith("api_key:")  # a reset also of what is gone


@pytest.mark.parametrize("text", ["another-secret", "auth.user:1"])
def test_what_may_be_no_key_of_this_site_is_warned_of(text: str, row: Group) -> None:
    User.objects.create(pk=1)
    (warning,) = override_warnings(typed(text), [])
    assert "rows, written like auth.group:5" in warning


def test_a_text_is_a_key_where_calls_have_texts_or_none_was_seen(row: Group) -> None:
    key_types.clear()
    (warning,) = override_warnings(typed("another-secret"), [])
    assert "No API key was seen yet" in warning and "write the row, such as shop.apikey:5" in warning
    with override_rules(KEYS):
        call("some-text")
    assert list(override_warnings(typed("another-secret"), [])) == []


def test_tokens_of_rest_framework_are_known_by_settings(settings: Any) -> None:
    key_types.clear()
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.Tokens"]}
    (warning,) = override_warnings(typed("another-secret"), [])
    assert "written like auth.group:5" in warning


class Tokens(TokenAuthentication):
    model = Group


@override_rules(KEYS)
def test_a_row_can_be_used_up(row: Group) -> None:
    use_up("keys", "api_key:auth.group:5")
    assert [call(row).status_code, call(row, Plan="large").status_code, call("else").status_code] == [429, 429, 200]
    with pytest.raises(InvalidRule, match="depends on the request: use up all of it"):
        use_up("keys", "api_key:auth.group:5", leaving=1)


TWICE = Override(subject="user:1", effect="multiply", factor=2)


@pytest.mark.parametrize("overrides", [[], [TWICE]])
@pytest.mark.parametrize("rule", [FROM_GROUP, {"rates": ["4/min", "9/day"], "key": "user"}], ids=["plan", "rates"])
def test_a_user_s_limit_can_be_used_up_but_for_some_calls(rule: Any, overrides: list[Override]) -> None:
    user = User.objects.create(pk=1)
    user.groups.add(Group.objects.create(name="large"))
    with override_rules({"keys": rule}):
        before = rulebook.pin(rulebook.Snapshot(rulebook.current().rules, overrides=overrides))
        use_up("keys", "user:1", leaving=1)
        assert [call(user=user).status_code for _ in range(2)] == [200, 429]
        rulebook.pin(before)
