"""REST framework's refusals as problem documents, where a site asks for them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.urls import path
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.test import APIClient
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from django_throttle import drf
from django_throttle.problems import answer
from django_throttle.stores import RedisStore
from tests.doors import Enforce, enforcer
from tests.inside import count_in

enforce = pytest.fixture(enforcer)


class View(APIView):
    authentication_classes: ClassVar[Any] = []
    throttle_classes: ClassVar[Any] = [drf.RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        if "missing" in request.query_params:
            raise NotFound
        return Response("found")


class Second(drf.UserRateThrottle):
    rate = "1/s"
    scope = "second"


class Minute(drf.UserRateThrottle):
    rate = "1/min"
    scope = "minute"


class Never(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return False


urlpatterns = [
    path("search", View.as_view()),
    path("several", View.as_view(throttle_classes=[Second, Minute])),
    path("never", View.as_view(throttle_classes=[drf.RuleThrottle, Never])),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": "django_throttle.problems.answer"}
    assert api_settings.EXCEPTION_HANDLER is answer


def test_of_several_throttles_all_that_refuse_and_the_longest_wait(enforce: Enforce) -> None:
    enforce()
    APIClient().get("/several")
    refused = APIClient().get("/several")
    assert refused.json()["violated-policies"] == ["drf-second", "drf-minute"]
    assert refused["Retry-After"] == "60" and "1 minute" in refused.json()["detail"]


def test_what_can_never_pass_has_no_retry_after(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(api={"rate": "1/min", "algorithm": "gcra"})
    monkeypatch.setattr(View, "throttle_cost", 9, raising=False)
    refused = APIClient().get("/search")
    assert "Retry-After" not in refused
    assert refused.json()["detail"].endswith("This costs more than the limit ever allows: at most 1 at once.")


def test_a_failed_store(enforce: Enforce, redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(api={"rate": "1/min", "on_store_failure": "deny"})
    count_in(RedisStore("redis://127.0.0.1:1/0"), monkeypatch)
    refused = APIClient().get("/search")
    assert (refused.status_code, refused.json()["status"]) == (503, 503)
    assert refused.json()["type"].endswith("#temporary-reduced-capacity") and refused["Retry-After"] == "1"


def test_other_errors_and_other_throttles_are_answered_as_ever(enforce: Enforce) -> None:
    enforce(api={"rate": "9/min"})
    for where, status in (("/search?missing", 404), ("/never", 429)):
        response = APIClient().get(where)
        assert (response.status_code, response["Content-Type"]) == (status, "application/json")
        assert list(response.json()) == ["detail"]
