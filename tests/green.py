"""A WSGI application for gunicorn's gevent workers; tests/stores/test_gevent.py starts it.

REDIS_URL  where it counts        SETTINGS  other settings, as JSON

Every path goes through the middleware. ``/held/SECONDS`` takes so long.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_throttle import limiter
from django_throttle.core import Rule
from django_throttle.exceptions import Refused
from django_throttle.http import plain_request
from django_throttle.stores import get_store

settings.configure(
    SECRET_KEY="green",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django_throttle"],
    MIDDLEWARE=["django_throttle.middleware.ThrottleMiddleware"],
    DJANGO_THROTTLE={
        "REDIS": os.environ["REDIS_URL"], "RULES": {"api": {"rate": "100000/min", "key": "ip"}},
        "DATABASE_RULES": False, "PROCESS_TTL": 2.0,
        **json.loads(os.environ.get("SETTINGS", "{}")),
    },
)  # fmt: skip
django.setup()

CAP = Rule("cap", limit=3, algorithm="concurrency")

decisions: list[dict[str, Any]] = []
decide = plain_request.decide


def timed(*args: Any, **kwargs: Any) -> Any:
    """How long each decision took, of all that were going on at once."""
    began = time.perf_counter() - queued()
    decision = decide(*args, **kwargs)
    decisions.append({"seconds": time.perf_counter() - queued() - began, "degraded": decision.degraded})
    return decision


def queued() -> float:
    """Seconds that this thread has waited for a processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1_000_000_000


plain_request.decide = timed


def quick(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"pid": os.getpid()})


def held(request: HttpRequest, seconds: str) -> JsonResponse:
    try:
        with limiter.Limiter([CAP], get_store()).lease("user:1"):
            time.sleep(float(seconds))
    except Refused:
        return JsonResponse({}, status=429)
    return JsonResponse({})


def said(request: HttpRequest) -> JsonResponse:
    """The decisions since the last time, and what Redis has not heard of this process."""
    taken = decisions[:]
    del decisions[: len(taken)]
    return JsonResponse({"decisions": taken, "introduced": get_store().leases.is_introduced})


urlpatterns = [
    path("quick", quick, name="quick"),
    path("held/<seconds>", held, name="held"),
    path("said", said, name="said"),
]
application = WSGIHandler()
