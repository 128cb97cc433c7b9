"""Somebody who calls, rules for it, and a log that has said nothing yet."""

from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.core import Decision
from django_throttle.core.decision import Outcome, Reason, combine_outcomes
from django_throttle.identity.call import Call
from django_throttle.observe import reports
from django_throttle.runtime import LogThrottle
from tests.callers import KeyedCaller
from tests.clock import FrozenClock

KEYS = ("user", "ip", "user_or_ip", "session", "everyone")
CALL = Call("any", ("request",), KeyedCaller(**dict.fromkeys(KEYS, "user:somebody")))


def decided(*allowed: bool, reason: Reason = Reason.EXCEEDED, **options: Any) -> Decision:
    """A decision of rules named one, two, … that say so."""
    outcomes = []
    for rule, yes in zip(("one", "two", "three"), allowed, strict=False):
        why, wait = (Reason.WITHIN, 0.0) if yes else (reason, 9.0)
        outcomes.append(Outcome(rule, "user:somebody", yes, 10, 5, wait, 9.0, why, **options))
    return combine_outcomes(tuple(outcomes))


@pytest.fixture(autouse=True)
def refusal_throttle(monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> LogThrottle:
    refusal_throttle = LogThrottle(clock, seconds=10)
    monkeypatch.setattr(reports, "refusal_throttle", refusal_throttle)
    return refusal_throttle


@pytest.fixture
def enforce(settings: Any) -> Callable[..., None]:
    def enforce(**options: Any) -> None:
        others = {name: options.pop(name) for name in list(options) if name.isupper()}
        rule = {"rate": "2/hour", "key": "everyone", **options}
        settings.DJANGO_THROTTLE = {"RULES": {"api": rule}, "DATABASE_RULES": False, **others}

    return enforce
