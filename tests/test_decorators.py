"""The decorator over views and any other callable, and questions by the name of a rule from code that is no view."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.views import View
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_throttle import decorators
from django_throttle.checks import project
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidIdent, InvalidRule, Refused
from django_throttle.limiter import aallows, allows
from tests.doors import BOTH, Enforce


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Gate:
    def may_enter(self, request: HttpRequest) -> bool:
        return True

    def get(self, req: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Listing:
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    listed = get


class Shop(Listing, View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    sold = post


class Keeper(Gate):  # Gate has a subclass, and none that is a view
    pass


async def acost(*_: Any) -> int:
    return 1


class TestWhatItGoesAround:
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

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (lambda: (yield), "a generator"), (classmethod(lambda cls: None), "below @classmethod"),
            (staticmethod(lambda: None), "below @staticmethod"), (property(lambda self: None), "below @property"),
            (AsyncWebsocketConsumer, "a consumer the ThrottledConsumerMixin"), (APIView, "throttle_classes"),
            (dict, "not around dict"), ("search", "not around str"),
        ],
    )  # fmt: skip
    def test_anything_else_is_a_type_error_at_once(self, target: Any, message: str) -> None:
        with pytest.raises(TypeError, match=message):
            throttle("api", ident="everyone")(target)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"rule": lambda request: HttpResponse()}, TypeError, r'the name of a rule: @throttle\("search"\)'),
            ({"rule": ""}, ValueError, r'the name of a rule: @throttle\("search"\)'),
            ({"rule": "api", "cost": acost}, TypeError, "plain functions"),
            ({"rule": "api", "ident": acost}, TypeError, "plain functions"),
        ],
    )
    def test_options_without_sense(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            throttle(options.pop("rule"), **options)(lambda: None)


def test_a_rule_that_does_not_exist_is_said_once(enforce: Enforce, caplog: pytest.LogCaptureFixture) -> None:
    enforce(search={"rate": "1/min"})

    @throttle("serach", ident="everyone")
    def work() -> str:
        return "done"

    assert [work(), work()] == ["done", "done"]
    said = [record.getMessage() for record in caplog.records if "serach" in record.getMessage()]
    assert said == ["calls that name a rule are not limited: there is no rule 'serach'; did you mean 'search'?"]


TWICE = {"rate": "2/min", "algorithm": "fixed_window", "scopes": ["elsewhere"]}


@pytest.fixture(params=[allows, async_to_sync(aallows)], ids=["allows", "aallows"])
def question(request: pytest.FixtureRequest) -> Any:
    return request.param


def request_of(address: str = "192.0.2.7", method: str = "GET") -> HttpRequest:
    return RequestFactory().generic(method, "/", REMOTE_ADDR=address)


class TestQuestions:
    @BOTH
    @pytest.mark.row("R20")
    def test_the_answer_is_true_until_the_limit(self, enforce: Enforce, question: Any) -> None:
        enforce(**{"auth-ip": TWICE})
        answers = [question("auth-ip", "ip:192.0.2.7") for _ in range(3)]
        assert [bool(answer) for answer in answers] == [answer.allowed for answer in answers] == [True, True, False]
        assert [answer.remaining for answer in answers] == [1, 0, 0]
        assert answers[2].rule == "auth-ip" and 0 < answers[2].retry_after <= 60 and answers[2].delay == 0
        assert question("auth-ip", "ip:192.0.2.8", cost=2, raises=True)
        with pytest.raises(Refused) as refused:
            question("auth-ip", "ip:192.0.2.8", raises=True)
        assert refused.value.decision.rule == "auth-ip"

    @pytest.mark.parametrize(
        ("caller", "ident"),
        [
            ("account:anna", "account:anna"), (User(pk=7), "user:7"), (request_of(), "ip:192.0.2.7"),
            ("ip:::ffff:192.0.2.9", "ip:192.0.2.9"), ("ip:2001:DB8:0::7", "ip:2001:db8::/64"),
            ({"type": "websocket", "client": ["192.0.2.9", 1], "headers": []}, "ip:192.0.2.9"),
        ],
        ids=str,
    )  # fmt: skip
    def test_callers(self, enforce: Enforce, question: Any, caller: Any, ident: str) -> None:
        enforce(api=TWICE)
        assert question("api", caller).outcomes[0].ident == ident

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"limit": 1, "algorithm": "concurrency"}, "counts slots"),
            ({"rate": "9/min", "unit": "bytes"}, "counts bytes"),
            (TWICE | {"key": "connection", "events": ["message"]}, "each WebSocket by itself, .*: give it another key"),
            (TWICE | {"count_on": [401]}, "counts by the status of the answer"),
            (TWICE | {"refund_on": [401]}, "counts by the status of the answer"),
            (TWICE | {"cost": "django_throttle.contrib.graphql.operation_cost"}, "pass the request as the caller"),
            (TWICE | {"methods": ["POST"]}, "pass the request as the caller"),
        ],
    )
    def test_a_rule_that_cannot_answer_is_an_error(
        self, enforce: Enforce, question: Any, options: dict[str, Any], said: str
    ) -> None:
        enforce(api=options)
        for caller in ("x", User(pk=7)):
            with pytest.raises(InvalidRule, match=said):
                question("api", caller)

    @pytest.mark.parametrize(
        ("name", "caller", "error", "said"),
        [
            ("serach", "x", InvalidRule, "no rule 'serach'; did you mean 'search'"),
            ("SEARCH", "x", InvalidRule, "no rule 'SEARCH'; did you mean 'search'"),
            ("wrong", "x", InvalidRule, "rule 'wrong' is invalid: .*'often' is not a rate"),
            ("search", 5, TypeError, "caller is a consumer, its scope, a request or an ident"),
            ("search", AnonymousUser(), InvalidIdent, "not logged in has no ident: pass the request"),
            ("posts", {"type": "websocket"}, InvalidRule, "pass the request as the caller"),
        ],
        ids=str,
    )
    def test_so_is_a_name_or_a_caller_that_is_none(
        self, enforce: Enforce, question: Any, name: str, caller: Any, error: type[Exception], said: str
    ) -> None:
        enforce(search=TWICE, posts=TWICE | {"methods": ["POST"]}, wrong={"rate": "often"})
        with pytest.raises(error, match=said):
            question(name, caller)

    async def test_on_an_event_loop_it_says_what_to_await(self, enforce: Enforce) -> None:
        enforce(api=TWICE)
        with pytest.raises(RuntimeError, match="await aallows"):
            allows("api", "x")

    @pytest.mark.parametrize(("method", "passes"), [("POST", 2), ("GET", 4)])
    def test_methods_are_of_the_request_among_the_arguments(self, enforce: Enforce, method: str, passes: int) -> None:
        enforce(api=TWICE | {"methods": ["POST"]})
        view = throttle("api")(lambda request: HttpResponse())
        assert [view(request_of(method=method)).status_code for _ in range(4)].count(200) == passes
        assert sum(bool(allows("api", request_of("192.0.2.8", method))) for _ in range(4)) == passes


class TestDecoratorsThatAreNoQuestion:
    @pytest.mark.parametrize("answer", [True, None, User(pk=1)], ids=repr)
    def test_a_function_that_is_no_view_says_so_at_once(self, enforce: Enforce, answer: Any) -> None:
        enforce(**{"auth-ip": TWICE})
        may_enter = throttle("auth-ip")(lambda request: answer)

        @throttle("auth-ip")
        async def amay_enter(request: HttpRequest) -> Any:
            return answer

        for call in (may_enter, async_to_sync(amay_enter)):
            with pytest.raises(TypeError, match=r'it is no view, .* if not allows\("auth-ip", request\)'):
                call(request_of())

    def test_a_function_without_a_request_is_told_to_name_its_caller(self) -> None:
        with pytest.raises(InvalidIdent, match="a callable that gets no request needs ident="):
            throttle("api")(lambda order: order)(5)

    def test_a_method_that_has_a_request_somewhere_is_told_what_to_write(self, enforce: Enforce) -> None:
        enforce(api=TWICE)

        class Form:
            request = request_of()

            @throttle("api")
            def form_valid(self, form: Any) -> bool:
                return True

            @throttle("api")
            def authenticate(self, username: str, request: HttpRequest | None = None) -> bool:
                return True

        class Backend:
            authenticate = Form.authenticate

        with pytest.raises(InvalidIdent) as error:
            Form().form_valid(None)
        assert 'if not allows("api", self.request), of' in str(error.value)
        assert "or write ident=lambda self, form: self.request.user" in str(error.value)
        with pytest.raises(InvalidIdent) as error:
            Backend().authenticate("anna", request_of())
        assert "ident=lambda self, username, request=None: request.user" in str(error.value)

    def test_the_check_says_it_too(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Form:
            def form_valid(self, form: Any) -> None: ...

            def post(self, data: Any) -> None: ...

        class Orders(ViewSet):
            def list(self, r: Any) -> None: ...

        def of_a_request_too(name: str, request: HttpRequest) -> None: ...

        for name in ("request_methods", "functions_without_ident"):
            registry = type(getattr(decorators, name))()
            monkeypatch.setattr(decorators, name, registry)
            monkeypatch.setattr(project, name, registry)
        functions: Any = Form.form_valid, Form.post, of_a_request_too, view, lambda *args: None, Gate().may_enter
        for function in (*functions, Gate.may_enter, Gate.get, Listing.listed, Shop.sold, Shop.post):
            throttle("asked")(function)
        for function in (lambda: None, Gate.may_enter):
            throttle("asked", ident="everyone")(function)
        monkeypatch.setattr(Orders, "list", throttle("asked")(Orders.list))
        settings.ROOT_URLCONF = (path("orders", Orders.as_view({"get": "list"})),)
        messages = project.check_decorated_functions(None)
        assert {message.id for message in messages} == {"django_throttle.W049"}
        reasons = {message.msg.rpartition(".")[2].partition(", and has")[0]: message.hint for message in messages}
        for method, argument in (
            ("get, which is a method of no view", "req"),
            ("may_enter, which is a method of no view", "request"),
            ("form_valid, which gets no request as its first argument", "self.request"),
            ("of_a_request_too, which gets no request as its first argument", "request"),
        ):
            assert f"if not allows('asked', {argument})" in str(reasons.pop(method))
        assert reasons == {}
