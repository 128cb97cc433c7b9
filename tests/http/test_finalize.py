"""A request is settled once, by the first door it came to, whatever the doors behind it do."""

import asyncio
import weakref
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_throttle import limiter
from django_throttle.core import Rule
from django_throttle.core.io import run
from django_throttle.http import finalize
from django_throttle.http.finalize import finish_failed, status_of, status_of_error
from django_throttle.http.request_state import REQUEST_EVENTS, state_of
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.limiter import Limiter
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo
from tests.doors import Enforce

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
