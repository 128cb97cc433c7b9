"""A refusal out of a view of REST framework is answered by the site's EXCEPTION_HANDLER, whatever stands before it."""

import json
from typing import Any, ClassVar

import pytest
from adrf.views import APIView as AsyncAPIView
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView, exception_handler
from rest_framework.viewsets import GenericViewSet

from django_throttle.contrib import problems as problem_documents
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle, UserRateThrottle
from django_throttle.limiter import allows
from django_throttle.stores import RedisStore
from tests.doors import Enforce
from tests.inside import count_in

MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]


def in_envelope(error: Exception, context: Any) -> Any:
    response = exception_handler(error, context)
    if response is not None:
        response.data = {"error": response.data}
    return response


@throttle("mail", ident="everyone")
def send() -> None: ...


class Free(UserRateThrottle):
    rate = "999/min"


class View(APIView):
    throttle_classes: ClassVar[Any] = [RuleThrottle]

    def get_exception_handler(self) -> Any:
        return in_envelope

    def get(self, request: Any) -> Response:
        send()
        return Response({})


class Asking(View):
    throttle_classes = ()

    def get_permissions(self) -> Any:
        allows("mail", self.request, raises=True)
        return []


class AsyncView(View, AsyncAPIView):
    async def get(self, request: Any) -> Response:
        await throttle("mail", ident="everyone")(_asend)()
        return Response({})


async def _asend() -> None: ...


class Enveloped(View):
    throttle_classes = ()

    @throttle("mail")
    def get(self, request: Any) -> Response:
        return Response({})

    @throttle("free")
    def post(self, request: Any) -> Response:
        send()
        return Response({})


class AsyncEnveloped(Enveloped, AsyncAPIView):
    @throttle("mail")
    async def get(self, request: Any) -> Response:
        return Response({})

    @throttle("free")
    async def post(self, request: Any) -> Response:
        await throttle("mail", ident="everyone")(_asend)()
        return Response({})


@api_view(["GET", "POST"])
@throttle("mail")
def decorated_function(request: Any) -> Response:
    return Response({})


urlpatterns = [
    path("rules", View.as_view()), path("drop-in", type("DropIn", (View,), {"throttle_classes": [Free]}).as_view()),
    path("both", type("Both", (View,), {"throttle_classes": [Free, RuleThrottle]}).as_view()),
    path("plain", type("Plain", (View,), {"throttle_classes": []}).as_view()),
    path("actions", type("Actions", (View, GenericViewSet), {"throttle_classes": []}).as_view({"get": "get"})),
    path("function", api_view(["GET"])(lambda request: View.get(None, request))), path("asking", Asking.as_view()),
    path("async", AsyncView.as_view()), path("async-plain", AsyncView.as_view(throttle_classes=[])),
    path("decorated", Enveloped.as_view()), path("decorated-async", AsyncEnveloped.as_view()),
    path("decorated-function", decorated_function),
    path("decorated-rules", type("Both", (Enveloped,), {"throttle_classes": [RuleThrottle]}).as_view()),
    path("around-function", throttle("mail")(api_view(["GET"])(lambda request: Response({})))),
]  # fmt: skip


@pytest.mark.parametrize("middleware", [[], MIDDLEWARE], ids=["no middleware", "middleware"])
@pytest.mark.parametrize("name", ["rules", "drop-in", "both", "plain", "asking", "actions", "async", "async-plain"])
def test_a_refusal_keeps_its_envelope(enforce: Enforce, settings: Any, name: str, middleware: list[str]) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, middleware
    enforce(mail={"rate": "1/min", "scopes": ["mail"]}, all={"rate": "2/min", "algorithm": "fixed_window"})
    first, second, third = (Client().get(f"/{name}") for _ in range(3))
    assert (first.status_code, second.status_code, third.status_code) == (200, 429, 429)
    for answer in (second, third):
        assert set(answer.json()) == {"error"} and "RateLimit" in answer
        assert 0 < int(answer["Retry-After"]) <= 132


@pytest.mark.parametrize(("name", "key"), [("plain", "error"), ("actions", "error"), ("function", "detail")])
def test_so_does_a_refusal_of_a_view_that_the_middleware_alone_limits(
    enforce: Enforce, settings: Any, name: str, key: str
) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, MIDDLEWARE
    enforce(mail={"rate": "1/min", "scopes": ["mail"]}, all={"rate": "9/min", "algorithm": "fixed_window"})
    first, second = (Client().get(f"/{name}", headers={"Accept": "application/json"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert set(second.json()) == {key} and "Retry-After" in second and '"all"' in second["RateLimit"]


@pytest.mark.parametrize("middleware", [[], MIDDLEWARE], ids=["no middleware", "middleware"])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", ["decorated", "decorated-async", "decorated-rules", "decorated-function"])
def test_so_does_a_refusal_by_the_decorator_of_a_method(
    enforce: Enforce, settings: Any, name: str, method: str, middleware: list[str]
) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, middleware
    enforce(mail={"rate": "1/min", "scopes": ["mail"]}, free={"rate": "9/min", "scopes": ["free"]})
    first, second = (Client().generic(method, f"/{name}", headers={"Accept": "application/json"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert set(second.json()) == ({"detail"} if name == "decorated-function" else {"error"})
    assert 0 < int(second["Retry-After"]) <= 132 and '"mail";r=0' in second["RateLimit"]
    assert second["Allow"] and second["Content-Type"] == "application/json"


def test_a_decorator_around_the_whole_view_answers_itself(enforce: Enforce, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
    enforce(mail={"rate": "1/min", "scopes": ["mail"]})
    answers = [Client().get("/around-function") for _ in range(2)]
    assert answers[1]["Content-Type"] == "application/problem+json"


def test_what_the_handler_does_not_answer_goes_on(enforce: Enforce, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, MIDDLEWARE
    enforce(all={"rate": "9/min"})

    def fail(self: Any, request: HttpRequest) -> Response:
        raise ZeroDivisionError

    view = type("Failing", (View,), {"get": fail})
    with pytest.raises(ZeroDivisionError):
        view.as_view()(Client().get("/rules").wsgi_request)


class Never(BaseThrottle):
    def allow_request(self, request: Any, view: APIView) -> bool:
        return False


class Plain(APIView):
    """A view whose refusals are problem documents, as the site's setting says."""

    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [RuleThrottle]

    def get(self, request: Any) -> Response:
        raise NotFound


def asked(*throttles: Any, **attributes: Any) -> Any:
    view = type("Asked", (Plain,), {"throttle_classes": throttles or [RuleThrottle], **attributes})
    response = view.as_view()(APIRequestFactory().get("/"))
    return response, json.loads(response.rendered_content if hasattr(response, "render") else response.content)


@pytest.fixture
def problems(settings: Any) -> None:
    settings.REST_FRAMEWORK = {
        **settings.REST_FRAMEWORK,
        "EXCEPTION_HANDLER": "django_throttle.contrib.problems.answer",
    }
    assert api_settings.EXCEPTION_HANDLER is problem_documents.answer


@pytest.mark.usefixtures("problems")
class TestProblemDocuments:
    def test_of_several_throttles_all_that_refuse_and_the_longest_wait(self, enforce: Enforce) -> None:
        enforce()
        both = [type(name, (UserRateThrottle,), {"scope": name, "rate": f"1/{name}"}) for name in ("s", "min")]
        asked(*both)
        refused, document = asked(*both)
        assert document["violated-policies"] == ["drf-s", "drf-min"]
        assert refused["Retry-After"] == "60" and "1 minute" in document["detail"]

    def test_what_can_never_pass_has_no_retry_after(self, enforce: Enforce) -> None:
        enforce(api={"rate": "1/min", "algorithm": "gcra"})
        refused, document = asked(throttle_cost=9)
        assert "Retry-After" not in refused
        assert document["detail"].endswith("This costs more than the limit ever allows: at most 1 at once.")

    def test_a_failed_store(self, enforce: Enforce, redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        enforce(api={"rate": "1/min", "on_store_failure": "deny"})
        count_in(RedisStore("redis://127.0.0.1:1/0"), monkeypatch)
        refused, document = asked()
        assert (refused.status_code, document["status"], refused["Retry-After"]) == (503, 503, "1")
        assert document["type"].endswith("#temporary-reduced-capacity")

    def test_other_errors_and_other_throttles_are_answered_as_ever(self, enforce: Enforce) -> None:
        enforce(api={"rate": "9/min"})
        for (response, document), status in ((asked(), 404), (asked(RuleThrottle, Never), 429)):
            assert (response.status_code, list(document)) == (status, ["detail"])
