"""State that entry points of a request share: its caller, charges, route and settlement."""

import asyncio
import weakref
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle import limiter
from django_throttle.core import Rule
from django_throttle.core.io import run
from django_throttle.drf import RuleThrottle
from django_throttle.http import finalize, request_state
from django_throttle.http.finalize import finish_failed, status_of, status_of_error
from django_throttle.http.request_state import REQUEST_EVENTS, RequestState, state_of
from django_throttle.identity import RequestCaller, client_address
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo
from tests.doors import BOTH, LOGIN, Enforce
from tests.entry_points import site
from tests.forks import holds_in_child
from tests.http.conftest import Ask

THREE: dict[str, Any] = {"rate": "3/min", "algorithm": "fixed_window", "scopes": ["api"]}
HERE, THERE = "203.0.113.1", "203.0.113.2"


class Tokens(BaseAuthentication):
    def authenticate(self, request: Request) -> Any:
        token = request.headers.get("X-Token")
        if token is None:
            return None
        if not token.isdigit():
            raise AuthenticationFailed
        return User(pk=int(token)), None

    def authenticate_header(self, request: Request) -> str:
        return "Token"


held: list[set[tuple[str, str]]] = []


class Api(APIView):
    authentication_classes: ClassVar[Any] = [Tokens]
    throttle_classes: ClassVar[Any] = [RuleThrottle]
    throttle_scope = "api"

    def get(self, request: Request) -> Response:
        held.append({ident for _, ident in get_store().leases.holdings()})
        return Response({"user": request.user.pk}, status=int(request.query_params.get("status", 200)))


urlpatterns = [path("api", Api.as_view())]


@pytest.fixture(autouse=True)
def here(settings: Any) -> None:
    settings.MIDDLEWARE = site.MIDDLEWARE
    held.clear()


def statuses(ask: Ask, times: int, token: Any = None, address: str = HERE, where: str = "/api") -> list[int]:
    headers = {"X-Forwarded-For": address} | ({} if token is None else {"X-Token": str(token)})
    return [ask(where, headers=headers).status_code for _ in range(times)]


@BOTH
class TestTokens:
    @pytest.mark.row("A29")
    def test_a29_bad_tokens_stay_charged_to_the_address(self, enforce: Enforce, client: Ask, settings: Any) -> None:
        enforce(api=THREE, TRUSTED_PROXIES=1)
        settings.MIDDLEWARE = []
        assert statuses(client, 6, "bad") == [401] * 6, "which REST framework refuses before it throttles"
        settings.MIDDLEWARE = site.MIDDLEWARE
        assert statuses(client, 6, "bad") == [401] * 3 + [429] * 3
        assert statuses(client, 1, 1, THERE) == [200]

    def test_answers_that_do_not_count_go_back_once(self, enforce: Enforce, client: Ask) -> None:
        enforce(api={**THREE, "count_on": [401]}, TRUSTED_PROXIES=1)
        assert statuses(client, 2, "bad") == [401, 401]
        assert statuses(client, 5, 1) == [200] * 5
        assert statuses(client, 3, 1, where="/api?status=401") == [401] * 3
        assert statuses(client, 1, 1) == [429]
        assert statuses(client, 2, "bad") == [401, 429], "two of the address are still there, and no more than two"


@BOTH
def test_a_slot_is_held_by_whom_the_last_door_knows(enforce: Enforce, client: Ask) -> None:
    one: dict[str, Any] = {"limit": 1, "algorithm": "concurrency", "events": ["inflight"], "scopes": ["api"]}
    enforce(slots=one, others={**one, "key": "ip"}, TRUSTED_PROXIES=1)
    assert statuses(client, 2, 1) == [200, 200]
    assert held == [{"user:1", f"ip:{HERE}"}] * 2
    assert len(get_store().leases) == 0
    for ident in ("user:1", f"ip:{HERE}"):
        assert Limiter([Rule("slots", **one)], get_store()).peek(ident).remaining == 1


def test_a_child_that_is_forked_while_a_request_first_spends_does_not_hang(servers: None, monkeypatch: Any) -> None:
    make, held = request_state.Spending, []

    def forking() -> Any:
        monkeypatch.setattr(request_state, "Spending", make)
        held.append(holds_in_child(lambda: RequestState().spending.spent == 0))
        return make()

    monkeypatch.setattr(request_state, "Spending", forking)
    state = RequestState()
    assert state.spending is state.spending
    assert held == [True]


SLOTS: dict[str, Any] = {"limit": 2, "algorithm": "concurrency", "events": ["inflight"], "key": "everyone"}
RATE: dict[str, Any] = {"rate": "5/min", "algorithm": "fixed_window", "key": "everyone"}


def visit(**call: Any) -> HttpRequest:
    request = RequestFactory().get("/")
    caller = RequestCaller(request)
    assert state_of(request).become_finisher(caller)
    state = state_of(request)
    state.note(
        limiter.decide(Call("any", REQUEST_EVENTS, caller, charged=state.ledger if state.has_charged else None, **call))
    )
    return request


def finish(request: HttpRequest, response: Any) -> Any:
    if owed := finalize.finish(request, response, state_of(request)):
        run(owed(BlockingIo(get_store())))
    return response


def test_a_request_is_collected_at_once(enforce: Enforce) -> None:
    enforce(api=RATE, slots=SLOTS)
    request = visit()
    gone, response = weakref.ref(request), finish(request, HttpResponse())
    del request, response
    assert gone() is None, "else it is garbage until the collector finds it, with all that it refers to"


def test_a_client_that_has_gone_is_charged(enforce: Enforce) -> None:
    enforce(api={**RATE, "count_on": [401]}, slots=SLOTS)
    finish_failed(visit(), status_of_error(asyncio.CancelledError()))
    remaining = Limiter([Rule("api", **RATE)], get_store()).peek("everyone").remaining
    assert (remaining, len(get_store().leases)) == (4, 0)


@pytest.mark.parametrize(
    ("answer", "status"),
    [(HttpResponse(status=204), 204), ({"a": 1}, 200), ((401, "no"), 401), ((), 200), (None, 200), ([401], 200)],
)
def test_the_status_of_an_answer(answer: Any, status: int) -> None:
    assert status_of(answer) == status


def test_the_status_of_an_error() -> None:
    class Teapot(Exception):
        status_code = 418

    class Odd(Exception):
        status_code = "no number"

    statuses = [
        status_of_error(error) for error in (Teapot(), Odd(), ValueError(), SystemExit(), asyncio.CancelledError())
    ]
    assert statuses == [418, 500, 500, None, None]


def sends_elsewhere(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        request.urlconf = __name__
        return get_response(request)

    return middleware


def still(request: HttpRequest) -> HttpResponse:
    return HttpResponse("the same for all")


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nobody" if request.user == AnonymousUser() else "somebody")


urlpatterns += [
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


def return_with(cookie: str | None, **content: Any) -> tuple[str | None, str]:
    """Return who it is, and the cookie that a view makes when it changes the session of signed cookies."""
    request = RequestFactory().get("/")
    session = request.session = SessionStore(cookie)
    ident = RequestCaller(request).ident("session")
    session.update({"seen": session.get("seen", 0) + 1, **content})
    session.save()
    return ident, str(session.session_key)


def test_a_session_that_is_saved_stays_the_same_and_an_empty_or_forged_session_is_nobody() -> None:
    first = return_with(return_with(None, cart=1)[1])
    assert first[0] == return_with(first[1])[0] != return_with(return_with(None, cart=2)[1])[0]
    assert return_with("made:up")[0] is return_with(None)[0] is None


def test_an_address_is_none_where_nobody_knows_it_and_the_whole_of_ipv6() -> None:
    assert client_address(APIView().initialize_request(RequestFactory().get("/"))) == "127.0.0.1"
    assert client_address({"type": "http", "client": None, "headers": []}) is None
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="")) is None
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="2001:db8:0::1%eth0")) == "2001:db8::1"


class TestVary:
    """Rules by user ask the session only where the answer can depend on it: shared caches are told of every look."""

    @pytest.fixture(autouse=True)
    def logged_in(self, settings: Any) -> None:
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
