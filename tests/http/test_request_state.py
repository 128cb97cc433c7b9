"""What entry points share of a request: who is calling, what was charged, and that it is settled once."""

import asyncio
import weakref
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
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
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo
from tests.doors import BOTH, Enforce
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

    found = [
        status_of_error(error) for error in (Teapot(), Odd(), ValueError(), SystemExit(), asyncio.CancelledError())
    ]
    assert found == [418, 500, 500, None, None]
