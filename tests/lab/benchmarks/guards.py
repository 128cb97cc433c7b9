"""Other limiters that go around a view's method rather than into its throttle classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.decorators import method_decorator
from django_ratelimit.decorators import ratelimit  # type: ignore[import-not-found,import-untyped,unused-ignore]
from django_smart_ratelimit.decorator import rate_limit  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.lab.benchmarks.settings import RATES


def _pk(request: Any, *_: Any) -> str:
    return str(request.user.pk)


# Whatever has no throttle class goes around the view's method.
GUARDS: dict[str, Callable[[Any], Any]] = {
    "ratelimit": ratelimit(group="bench", key=lambda group, request: _pk(request), rate=RATES[0], method="GET"),
    "smart": rate_limit(key=_pk, rate=RATES[0]),
}


def guard(name: str, method: Any) -> Any:
    """The view's method behind the limiter of this name."""
    return method_decorator(GUARDS[name])(method)
