"""Refusals in drf-spectacular's OpenAPI schemas: the statuses 429 and 503, and the header fields of limits.

``REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_throttle.contrib.schema.AutoSchema"}``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from drf_spectacular import openapi
from drf_spectacular.plumbing import ResolvedComponent

from django_throttle.checks.project import MIDDLEWARE
from django_throttle.checks.settings import place_of
from django_throttle.conf import conf
from django_throttle.contrib.problems import answer
from django_throttle.core.headers import HEADER_VERSIONS, OFF, Policy, x_rate_limit
from django_throttle.drf import DecidedThrottle
from django_throttle.http.problem_details import CONTENT_TYPE
from django_throttle.http.refusal import HTML

if TYPE_CHECKING:
    Base = openapi.AutoSchema
else:  # the site chooses the class after the mixin
    Base = object

__all__ = ["AutoSchema", "ThrottleSchema"]

PROBLEM: Final = "ThrottleProblem"
DETAIL: Final = "ThrottleDetail"
STATUSES: Final = {
    "429": "A rate limit is exceeded, or too much is going on at the same time.",
    "503": "The limiter is unavailable.",
}
WHOLE: Final = {"type": "integer", "minimum": 0}
TEXT: Final = {"type": "string"}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    PROBLEM: {
        "type": "object",
        "description": "A problem document (RFC 9457).",
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "violated-policies": {"type": "array", "items": TEXT},
            "reference": TEXT,
        },
        "required": ["type", "title", "status", "detail"],
    },
    DETAIL: {"type": "object", "properties": {"detail": TEXT}, "required": ["detail"]},
}
HEADERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Retry-After": ("Seconds after which the request can pass; not there when it never will.", WHOLE),
    "RateLimit": ("How much is left of each limit, and in how many seconds there is more.", TEXT),
    "RateLimit-Policy": ("The limits that apply.", TEXT),
    "RateLimit-Limit": ("The limit that is nearest to being reached.", WHOLE),
    "RateLimit-Remaining": ("How much is left of it.", WHOLE),
    "RateLimit-Reset": ("Seconds until there is more.", WHOLE),
    "X-RateLimit-Limit": ("The limit that is nearest to being reached.", WHOLE),
    "X-RateLimit-Remaining": ("How much is left of it.", WHOLE),
    "X-RateLimit-Reset": ("When all of it is there again.", WHOLE),
}
ANY: Final = (Policy("", 1, 1, 1, None, 0.0),)


class ThrottleSchema(Base):
    """Mixin for a site's own AutoSchema. It adds the refusals by our throttles and our middleware to each operation.

    Responses and header fields that a view documents itself stay unchanged.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Return drf-spectacular's operation, with its possible refusals."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        media = self._refusal_media() if operation else {}
        if operation and media:
            fields = HEADER_VERSIONS[conf().RATELIMIT_HEADERS](ANY)
            names = [*fields, *(() if conf().X_RATELIMIT_HEADERS == OFF else x_rate_limit(ANY))]
            for response in operation["responses"].values():
                if "$ref" not in response:
                    response["headers"] = self._described(names) | response.get("headers", {})
            for status, description in STATUSES.items():
                refusal = {"description": description, "headers": self._described(["Retry-After", *names])}
                operation["responses"].setdefault(status, refusal | {"content": media})
        return operation

    def _refusal_media(self) -> dict[str, Any]:
        """Return the media types of a refusal, none if neither our throttles nor the middleware can refuse."""
        problem = {CONTENT_TYPE: {"schema": self._component(PROBLEM)}}
        media: dict[str, Any] = {}
        if any(isinstance(throttle, DecidedThrottle) for throttle in self.view.get_throttles()):
            detail = {"schema": self._component(DETAIL)}
            as_problem = self.view.get_exception_handler() is answer
            media = problem if as_problem else dict.fromkeys(self.map_renderers("media_type"), detail)
        is_behind_middleware = place_of(MIDDLEWARE) is not None
        return media | problem | {HTML: {"schema": TEXT}} if is_behind_middleware else media

    def _described(self, names: list[str]) -> dict[str, Any]:
        return {name: self._component(name, ResolvedComponent.HEADER) for name in names}

    def _component(self, name: str, kind: str = ResolvedComponent.SCHEMA) -> dict[str, Any]:
        """Return a reference to a component, which is described once for the whole schema."""
        schema = SCHEMAS.get(name) or dict(zip(("description", "schema"), HEADERS[name], strict=True))
        component = ResolvedComponent(name, kind, schema, ThrottleSchema)  # type: ignore[no-untyped-call]
        self.registry.register_on_missing(component)
        return component.ref


class AutoSchema(ThrottleSchema, openapi.AutoSchema):
    """AutoSchema of drf-spectacular, with the refusals."""
