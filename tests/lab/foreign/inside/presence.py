"""Puts django_throttle in the way of a suite that somebody else wrote; imported in that suite's own process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import django.conf
from django.core.handlers import base

MIDDLEWARE = "django_throttle.middleware.ThrottleMiddleware"
THROTTLE: dict[str, Any] = {
    "REDIS": os.environ["FOREIGN_REDIS"],
    # Everything is matched, by all that a rule may need on the way out, and nothing is ever too much.
    "RULES": {
        "calls": {
            "rate": "90000000/day",
            "events": ["request", "connect", "message", "send", "publish"],
            "key": os.environ["FOREIGN_KEY"],
        },
        "log": {"rate": "10000/s", "algorithm": "sliding_log", "key": "ip"},
        "bytes": {"rate": "90000000/s", "unit": "bytes", "key": "ip"},
        "failures": {"rate": "90000000/hour", "count_on": [*range(400, 600)], "key": "ip"},
        "open": {"limit": 100_000, "algorithm": "concurrency", "events": ["inflight", "connection"], "key": "ip"},
    },
    "RATELIMIT_HEADERS": os.environ["FOREIGN_HEADERS"],
    "TESTS": "redis",  # else it is none of these that decides
    "DEADLINE": 5.0,  # a machine that is busy with another suite decides all the same
    "HOOKS": ["presence.count"],
}


def count(report: Any) -> None:
    note(report.decision)


def note(decision: Any) -> None:
    word = "degraded" if decision.degraded else "allowed" if decision.allowed else "refused"
    with Path(os.environ["FOREIGN_DECISIONS"]).open("a", encoding="ascii") as lines:
        lines.write(f"{word}\n")


class WithMiddleware:
    """The settings as Django's handlers see them: our middleware is the last, whatever a test has overridden."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._settings, name)
        return [*found, MIDDLEWARE] if name == "MIDDLEWARE" and MIDDLEWARE not in found else found


base.settings = WithMiddleware(django.conf.settings)
