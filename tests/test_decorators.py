"""The decorator: one rule by its name, over views and any other callable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidIdent, Refused
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)


@throttle("api")
def view(request: HttpRequest) -> HttpResponse:
    """A view."""
    return HttpResponse("sync")


@throttle("api")
async def aview(request: HttpRequest) -> HttpResponse:
    return HttpResponse("async")


@method_decorator(throttle("api"), name="get")
class ClassView(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("class")


@throttle("mail", ident=lambda to, **_: f"mail:{to}", cost=lambda to, copies=1: copies)
def send(to: str, copies: int = 1) -> int:
    return copies


@throttle("mail", ident="everyone")
async def asend() -> str:
    return "sent"


@BOTH
def test_a_view_is_answered_with_429(enforce: Enforce) -> None:
    enforce(api={"rate": "2/min", "scopes": ["elsewhere"]})
    request = RequestFactory().get("/")
    assert [view(RequestFactory().get("/")).status_code for _ in range(3)] == [200, 200, 429]
    assert int(view(request)["Retry-After"]) >= 1
    assert view.__doc__ == "A view."


@BOTH
def test_an_asynchronous_view(enforce: Enforce) -> None:
    enforce(api={"rate": "2/min"})

    async def thrice() -> list[int]:
        return [(await aview(AsyncRequestFactory().get("/"))).status_code for _ in range(3)]

    assert asyncio.run(thrice()) == [200, 200, 429]


def test_a_class_based_view(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min"})
    as_view = ClassView.as_view()
    assert [as_view(RequestFactory().get("/")).status_code for _ in range(2)] == [200, 429]


def test_twice_on_one_request_is_charged_once(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min"})
    assert throttle("api")(view)(RequestFactory().get("/")).status_code == 200


@BOTH
def test_a_callable_raises_refused_with_the_decision(enforce: Enforce) -> None:
    enforce(mail={"rate": "5/day"})
    assert send("a", copies=4) == 4
    with pytest.raises(Refused) as refused:
        send("a", copies=2)
    decision = refused.value.decision
    assert (decision.rule, decision.remaining, decision.outcomes[0].ident) == ("mail", 1, "mail:a")
    assert send("b", copies=5) == 5


async def test_an_asynchronous_callable(enforce: Enforce) -> None:
    enforce(mail={"rate": "1/day"})
    assert await asend() == "sent"
    with pytest.raises(Refused):
        await asend()


def test_an_ident_of_none_is_not_limited(enforce: Enforce) -> None:
    enforce(mail={"rate": "1/day"})
    free = throttle("mail", ident=lambda: None)(lambda: "done")
    assert [free() for _ in range(3)] == ["done"] * 3


def test_a_callable_without_request_and_ident_says_what_it_needs(enforce: Enforce) -> None:
    enforce(mail={"rate": "1/day"})
    with pytest.raises(InvalidIdent, match="needs ident="):
        throttle("mail")(lambda: None)()


@pytest.mark.parametrize("rules", [{}, {"api": {"rate": "1/min", "enabled": False}}], ids=["no rule", "disabled"])
def test_a_rule_that_is_not_in_force_limits_nothing(enforce: Enforce, rules: dict[str, Any]) -> None:
    enforce(**rules)
    assert [view(RequestFactory().get("/")).status_code for _ in range(3)] == [200] * 3
