"""The decorator: one rule by its name, over views and any other callable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_throttle.decorators import throttle
from django_throttle.exceptions import Refused
from tests.doors import BOTH, Enforce, enforcer

enforce = pytest.fixture(enforcer)


@throttle("api")
def view(request: HttpRequest) -> HttpResponse:
    """A view."""
    return HttpResponse("sync")


@throttle("mail", ident=lambda to, **_: f"mail:{to}", cost=lambda to, copies=1: copies)
def send(to: str, copies: int = 1) -> int:
    return copies


async def agenerator() -> AsyncIterator[int]:
    yield 1


async def acost(*_: Any) -> int:
    return 1


@BOTH
def test_a_callable_raises_refused_with_the_decision(enforce: Enforce) -> None:
    enforce(mail={"rate": "5/day"})
    assert send("a", copies=4) == 4
    with pytest.raises(Refused) as refused:
        send("a", copies=2)
    decision = refused.value.decision
    assert (decision.rule, decision.remaining, decision.outcomes[0].ident) == ("mail", 1, "mail:a")
    assert send("b", copies=5) == 5


class TestWhatItGoesAround:
    """Everything that is called once and returns; anything else says so when it is decorated."""

    def test_all_methods_of_a_class_of_views(self, enforce: Enforce) -> None:
        @throttle("api")
        class Page(View):
            def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()

            post = get

        enforce(api={"rate": "2/min"})
        factory, as_view = RequestFactory(), Page.as_view()
        asked = [factory.get("/"), factory.post("/"), factory.put("/"), factory.get("/")]
        assert [as_view(request).status_code for request in asked] == [200, 200, 429, 429]
        assert Page.__name__ == "Page"

    @pytest.mark.parametrize("name", ["dispatch", "get", "options"])
    async def test_methods_of_an_asynchronous_class_do_not_block(
        self, enforce: Enforce, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @method_decorator(throttle("api"), name=name)
        class Page(View):
            async def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()

        def blocks(*_: object, **__: object) -> None:
            raise AssertionError

        enforce(api={"rate": "1/min"})
        monkeypatch.setattr("django_throttle.limiter.decide", blocks)
        ask = AsyncRequestFactory().options if name == "options" else AsyncRequestFactory().get
        assert [(await Page.as_view()(ask("/"))).status_code for _ in range(2)] == [200, 429]

    def test_a_method_of_anything_else(self, enforce: Enforce) -> None:
        """One that is given a request is no view for it: what it returns is nobody's response."""

        class Shop:
            @throttle("api", ident="everyone")
            def order(self, request: HttpRequest) -> str:
                return "ordered"

            @classmethod
            @throttle("api", ident="everyone")
            def close(cls) -> str:
                return cls.__name__

        enforce(api={"rate": "2/min"})
        assert (Shop().order(RequestFactory().get("/")), Shop.close()) == ("ordered", "Shop")
        with pytest.raises(Refused):
            Shop().order(RequestFactory().get("/"))

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            (lambda: (yield), "a generator"),
            (agenerator, "a generator"),
            (classmethod(lambda cls: None), "below @classmethod"),
            (staticmethod(lambda: None), "below @staticmethod"),
            (property(lambda self: None), "below @property"),
            (AsyncWebsocketConsumer, "a consumer the ThrottledConsumerMixin"),
            (APIView, "throttle_classes"),
            (dict, "not around dict"),
            ("search", "not around str"),
        ],
    )
    def test_anything_else_is_a_type_error_at_once(self, what: Any, said: str) -> None:
        with pytest.raises(TypeError, match=said):
            throttle("api", ident="everyone")(what)

    def test_without_the_name_of_a_rule_it_is_one_too(self) -> None:
        with pytest.raises(TypeError, match=r'the name of a rule: @throttle\("search"\)'):
            throttle(lambda request: HttpResponse())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r'the name of a rule: @throttle\("search"\)'):
            throttle("")

    @pytest.mark.parametrize("given", [{"cost": acost}, {"ident": acost}], ids=["cost", "ident"])
    def test_what_says_the_cost_or_the_ident_is_a_plain_function(self, given: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="plain functions"):
            throttle("api", **given)(lambda: None)


def test_a_rule_that_does_not_exist_is_said_once(enforce: Enforce, caplog: pytest.LogCaptureFixture) -> None:
    enforce(search={"rate": "1/min"})

    @throttle("serach", ident="everyone")
    def work() -> str:
        return "done"

    assert [work(), work()] == ["done", "done"]
    said = [record.getMessage() for record in caplog.records if "serach" in record.getMessage()]
    assert said == ["there is no rule 'serach', so calls that name it are not limited; did you mean 'search'?"]
