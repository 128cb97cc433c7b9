"""Rules by user ask the session only where the answer can depend on it: shared caches are told of every look."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.doors import Enforce
from tests.entry_points import site
from tests.http.conftest import Ask

SESSION = "django.contrib.sessions.middleware.SessionMiddleware"
AUTH = "django.contrib.auth.middleware.AuthenticationMiddleware"


def still(request: HttpRequest) -> HttpResponse:
    return HttpResponse("the same for all")


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nobody" if request.user == AnonymousUser() else "somebody")


urlpatterns = [path("still", still, name="still"), path("hello", hello, name="hello")]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.MIDDLEWARE = [SESSION, AUTH, *site.MIDDLEWARE]


@pytest.mark.parametrize("key", ["user", "user_or_ip", "session", "ip", "ip+user"])
def test_who_has_no_session_is_not_looked_for(enforce: Enforce, client: Ask, key: str) -> None:
    enforce(api={"rate": "9/min", "key": key})
    assert "Vary" not in client("/still")
    assert client("/hello")["Vary"] == "Cookie", "the view has looked"


@pytest.mark.parametrize(("rule", "told"), [({"key": "ip"}, False), ({"scopes": ["hello"]}, False), ({}, True)])
def test_who_has_one_is_looked_for_where_a_rule_asks(
    enforce: Enforce, client: Ask, rule: dict[str, Any], told: bool
) -> None:
    enforce(api={"rate": "9/min", **rule})
    session = SessionStore()
    session["cart"] = 1
    session.save()
    assert ("Vary" in client("/still", headers={"Cookie": f"sessionid={session.session_key}"})) is told
