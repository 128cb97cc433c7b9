"""Middleware that sends a request elsewhere, a match made by hand, sessions without a key: none is a way around."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from rest_framework.views import APIView

from django_throttle.identity import RequestCaller, client_address
from tests.doors import BOTH, LOGIN, Enforce
from tests.entry_points import site
from tests.http.conftest import Ask


def sends_elsewhere(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        request.urlconf = __name__
        return get_response(request)

    return middleware


def still(request: HttpRequest) -> HttpResponse:
    return HttpResponse("the same for all")


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nobody" if request.user == AnonymousUser() else "somebody")


urlpatterns = [
    path("middleware/<doing>", lambda request, doing: HttpResponse("elsewhere"), name="elsewhere"),
    path("still", still, name="still"),
    path("hello", hello, name="hello"),
]


@BOTH
@pytest.mark.parametrize("scope", ["elsewhere", "*"])
def test_the_rules_of_where_it_goes_apply(enforce: Enforce, settings: Any, client: Ask, scope: str) -> None:
    settings.ROOT_URLCONF = site.__name__
    settings.MIDDLEWARE = [*site.MIDDLEWARE, f"{__name__}.sends_elsewhere"]
    enforce(api={"rate": "2/min", "key": "everyone", "scopes": [scope], "algorithm": "fixed_window"})
    answers = [client("/middleware/ok") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].content == b"elsewhere"
    assert answers[2]["Retry-After"] == "60"


def visit(cookie: str | None, **content: Any) -> tuple[str | None, str]:
    """Return who it is, and the cookie that a view makes when it changes the session of signed cookies."""
    request = RequestFactory().get("/")
    session = request.session = SessionStore(cookie)
    ident = RequestCaller(request).ident("session")
    session.update({"seen": session.get("seen", 0) + 1, **content})
    session.save()
    return ident, str(session.session_key)


def test_a_session_that_is_saved_stays_the_same_and_an_empty_or_forged_session_is_nobody() -> None:
    first = visit(visit(None, cart=1)[1])
    assert first[0] == visit(first[1])[0] != visit(visit(None, cart=2)[1])[0]
    assert visit("made:up")[0] is visit(None)[0] is None


def test_an_address_is_none_where_nobody_knows_it_and_the_whole_of_ipv6() -> None:
    assert client_address(APIView().initialize_request(RequestFactory().get("/"))) == "127.0.0.1"
    assert client_address({"type": "http", "client": None, "headers": []}) is None
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="")) is None
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="2001:db8:0::1%eth0")) == "2001:db8::1"


class TestVary:
    """Rules by user ask the session only where the answer can depend on it: shared caches are told of every look."""

    @pytest.fixture(autouse=True)
    def here(self, settings: Any) -> None:
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
        settings.MIDDLEWARE = [*LOGIN, *site.MIDDLEWARE]

    @pytest.mark.parametrize("key", ["user", "user_or_ip", "session", "ip", "ip+user"])
    def test_who_has_no_session_is_not_looked_for(self, enforce: Enforce, client: Ask, key: str) -> None:
        enforce(api={"rate": "9/min", "key": key})
        assert "Vary" not in client("/still")
        assert client("/hello")["Vary"] == "Cookie", "the view has looked"

    @pytest.mark.parametrize(("rule", "told"), [({"key": "ip"}, False), ({"scopes": ["hello"]}, False), ({}, True)])
    def test_who_has_one_is_looked_for_where_a_rule_asks(
        self, enforce: Enforce, client: Ask, rule: dict[str, Any], told: bool
    ) -> None:
        enforce(api={"rate": "9/min", **rule})
        session = SessionStore()
        session["cart"] = 1
        session.save()
        assert ("Vary" in client("/still", headers={"Cookie": f"sessionid={session.session_key}"})) is told
