"""The demo site's settings with rules that never refuse, on the Redis of this run."""

import os
from typing import Any

from testproject.settings import *  # noqa: F403

if not os.environ.get("BENCH_CONSOLE"):
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "django_throttle.console"]  # noqa: F405

RATES = ("1000000/s", "9000000/m", "9000000/h", "9000000/d", "9000000/d")
DJANGO_THROTTLE: dict[str, Any] = {
    "REDIS": "default", "DATABASE_RULES": False, "DEADLINE": 5.0,
    "RULES": {"deferred": {"rate": "1/h", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 100_000}},
}  # fmt: skip
RATELIMIT_USE_CACHE = "default"  # django-ratelimit
RATELIMIT_BACKEND = "redis"  # django-smart-ratelimit
RATELIMIT_REDIS = {"url": CACHES["default"]["LOCATION"]}  # noqa: F405
