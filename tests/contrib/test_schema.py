"""The OpenAPI schema: refusals and header fields, in a schema that drf-spectacular makes and its validator accepts."""

from types import ModuleType
from typing import Any, ClassVar

import pytest
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema as PlainSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.validation import validate_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView

from django_throttle.checks import project
from django_throttle.contrib.schema import ThrottleSchema
from django_throttle.drf import RuleThrottle

MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
FIELDS = ["RateLimit", "RateLimit-Policy"]
OURS = {"DEFAULT_SCHEMA_CLASS": "django_throttle.contrib.schema.AutoSchema"}


class Found(serializers.Serializer[Any]):
    name = serializers.CharField()


@pytest.fixture
def view(settings: Any) -> Any:
    """Makes a view of a site whose schema class is ours; its decorators see the settings of the test."""
    settings.DJANGO_THROTTLE, settings.REST_FRAMEWORK = {}, OURS
    header = OpenApiParameter("RateLimit", location="header", response=[204])

    class View(APIView):
        authentication_classes: ClassVar[Any] = []

        @extend_schema(responses=Found)
        def get(self, request: Request) -> Response:
            return Response()

        @extend_schema(responses={201: Found, 429: OpenApiResponse(Found, description="Our own.")}, request=None)
        def post(self, request: Request) -> Response:
            return Response()

        @extend_schema(responses={204: None}, parameters=[header])
        def delete(self, request: Request) -> Response:
            return Response()

    return lambda *throttles: type("View", (View,), {"throttle_classes": throttles})


def schema(**views: type[APIView]) -> Any:
    """The whole schema; drf-spectacular has nothing to complain of."""
    from django.urls import path

    urls = ModuleType("urls")
    urls.urlpatterns = [path(name, view.as_view()) for name, view in views.items()]  # type: ignore[attr-defined]
    GENERATOR_STATS.reset()
    found = SchemaGenerator(urlconf=urls).get_schema(request=None, public=True)
    assert not GENERATOR_STATS, GENERATOR_STATS._warn_cache | GENERATOR_STATS._error_cache
    validate_schema(found)
    return found


def responses(found: Any, view: str = "limited", method: str = "get") -> Any:
    return found["paths"][f"/{view}"][method]["responses"]


def names(response: Any) -> list[str]:
    return sorted(response.get("headers", {}))


def test_a_throttle_of_ours_can_refuse(view: Any) -> None:
    found = schema(limited=view(RuleThrottle))
    assert sorted(responses(found)) == ["200", "429", "503"]
    assert names(responses(found)["200"]) == FIELDS
    for status in ("429", "503"):
        refusal = responses(found)[status]
        assert names(refusal) == [*FIELDS, "Retry-After"] and refusal["description"]
        assert refusal["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/ThrottleDetail"}}}
    assert found["components"]["headers"]["Retry-After"]["schema"] == {"type": "integer", "minimum": 0}


def test_what_a_view_says_itself_stays(view: Any) -> None:
    found = schema(limited=view(RuleThrottle))
    own = responses(found, method="post")["429"]
    assert own["description"] == "Our own." and names(own) == FIELDS
    assert responses(found, method="delete")["204"]["headers"]["RateLimit"] == {"schema": {"type": "string"}}


def test_what_cannot_be_refused_by_us_is_as_ever(view: Any) -> None:
    found = schema(free=view(), others=view(AnonRateThrottle))
    for where in ("free", "others"):
        assert [*responses(found, where)] == ["200"] and names(responses(found, where)["200"]) == []
    assert "headers" not in found["components"]


def test_the_middleware_can_refuse_everything(view: Any, settings: Any) -> None:
    settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware", *MIDDLEWARE]
    found = schema(free=view(), limited=view(RuleThrottle))
    assert [*responses(found, "free")["429"]["content"]] == ["application/problem+json", "text/html"]
    assert sorted(responses(found)["429"]["content"]) == ["application/json", "application/problem+json", "text/html"]


OLD = ["RateLimit-Limit", "RateLimit-Policy", "RateLimit-Remaining", "RateLimit-Reset"]
X = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RATELIMIT_HEADERS": "off"}, []), ({"RATELIMIT_HEADERS": "draft-07"}, FIELDS),
        ({"RATELIMIT_HEADERS": "draft-06"}, OLD), ({"X_RATELIMIT_HEADERS": "epoch"}, [*FIELDS, *X]),
    ],
)  # fmt: skip
def test_the_fields_that_the_settings_ask_for(view: Any, settings: Any, given: Any, said: list[str]) -> None:
    settings.DJANGO_THROTTLE = given
    found = schema(limited=view(RuleThrottle))
    assert names(responses(found)["200"]) == said
    assert names(responses(found)["429"]) == sorted([*said, "Retry-After"])


THEIRS: Any = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
THROTTLED: Any = {"DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.UserRateThrottle"]}


@pytest.mark.parametrize(
    ("rest_framework", "middleware", "found"),
    [
        (THEIRS | THROTTLED, [], ["django_throttle.W020"]), (THROTTLED, [], ["django_throttle.W020"]),
        ({"DEFAULT_SCHEMA_CLASS": "gone.Schema"}, MIDDLEWARE, ["django_throttle.W020"]), (OURS, MIDDLEWARE, []),
        ({"DEFAULT_SCHEMA_CLASS": type("Own", (ThrottleSchema, PlainSchema), {})}, MIDDLEWARE, []),
    ],
)  # fmt: skip
def test_a_schema_without_refusals_is_a_warning(
    rest_framework: Any, middleware: Any, found: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project.apps, "is_installed", lambda name: name == "drf_spectacular")
    settings.REST_FRAMEWORK, settings.MIDDLEWARE = rest_framework, middleware
    assert [message.id for message in project.check_schema(None)] == found
