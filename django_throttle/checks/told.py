"""What clients are told: in headers, and in an OpenAPI schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.utils.module_loading import import_string

from django_throttle.checks.given import Given, is_number, value_of, wrong
from django_throttle.core.checks.numbers import is_dotted

MIDDLEWARE: Final = "django_throttle.middleware.ThrottleMiddleware"
THROTTLE: Final = "django_throttle.drf.DecidedThrottle"
SCHEMA: Final = "django_throttle.schema.ThrottleSchema"


def _jitter(given: Given) -> Iterator[CheckMessage]:
    value = value_of(given, "RETRY_JITTER")
    if not is_number(value, False) or not 0 <= value <= 1:
        yield wrong("E050", f"RETRY_JITTER is a share from 0 to 1, not {value!r}")


def _keys(given: Given) -> Iterator[CheckMessage]:
    keys = value_of(given, "TELL_KEYS")
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(map(_is_key, keys)):
        yield wrong("E053", f"TELL_KEYS is a list of keys that are dotted paths, not {keys!r}")


def _is_key(key: object) -> bool:
    return isinstance(key, str) and is_dotted(key)


def schema_warnings() -> list[CheckMessage]:
    """Where drf-spectacular describes what can be refused, and has not been told so."""
    if not apps.is_installed("drf_spectacular") or not can_refuse() or _knows_of_refusals():
        return []
    message = "the OpenAPI schema does not say which requests can be refused, and with what headers"
    hint = (
        'Set REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] to "django_throttle.schema.AutoSchema"; a class of your own '
        "inherits from django_throttle.schema.ThrottleSchema first."
    )
    return [Warning(message, hint=hint, id="django_throttle.W020")]


def can_refuse() -> bool:
    """Whether the middleware, or a throttle of ours for all views of REST framework, looks at requests."""
    return inherits(settings.MIDDLEWARE, MIDDLEWARE) or inherits(of_drf("DEFAULT_THROTTLE_CLASSES", ()), THROTTLE)


def _knows_of_refusals() -> bool:
    return inherits([of_drf("DEFAULT_SCHEMA_CLASS", None)], SCHEMA)


def of_drf(name: str, default: Any) -> Any:
    """One of REST framework's settings."""
    return getattr(settings, "REST_FRAMEWORK", {}).get(name, default)


def inherits(found: Iterable[Any], wanted: str) -> bool:
    """Whether one of these classes, or dotted paths of some, is of that kind; what cannot be imported is not."""
    return any(issubclass(one, import_string(wanted)) for one in map(_imported, found) if isinstance(one, type))


def _imported(found: Any) -> Any:
    try:
        return import_string(found) if isinstance(found, str) else found
    except ImportError:
        return None


TOLD_CHECKS: Final = (_jitter, _keys)
