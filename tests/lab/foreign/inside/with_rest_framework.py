"""A plugin of pytest: our throttles are REST framework's default ones, and our middleware is in the way."""

from __future__ import annotations

from typing import Any

from django.conf import LazySettings
from presence import MIDDLEWARE, THROTTLE

configure = LazySettings.configure
CLASSES = ["django_throttle.drf.RuleThrottle", "throttles.Anon", "throttles.User"]


def configure_with_us(self: LazySettings, *args: Any, **options: Any) -> None:
    options["INSTALLED_APPS"] = (*options["INSTALLED_APPS"], "django_throttle")
    options["MIDDLEWARE"] = (*options["MIDDLEWARE"], MIDDLEWARE)
    options["REST_FRAMEWORK"] = {"DEFAULT_THROTTLE_CLASSES": CLASSES, **options.get("REST_FRAMEWORK", {})}
    configure(self, *args, **options, DJANGO_THROTTLE=THROTTLE)


LazySettings.configure = configure_with_us  # type: ignore[method-assign]
