"""What the tests of every door need: rules in force, on a store of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_throttle import stores
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock

Store = MemoryStore | RedisStore
Enforce = Callable[..., Store]

BOTH = pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)
REDIS = pytest.mark.parametrize("enforce", ["redis"], indirect=True)


def enforcer(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock
) -> Enforce:
    """The fixture ``enforce``: puts rules (names and options) in force on the store that its parameter names."""

    def enforce(**rules: dict[str, Any]) -> Store:
        settings.DJANGO_THROTTLE = {"RULES": rules, "DATABASE_RULES": False, "AGENT": False}
        store = build(request, clock)
        monkeypatch.setattr(stores, "_store", store)
        return store

    return enforce


def build(request: pytest.FixtureRequest, clock: FrozenClock) -> Store:
    """A store on a clock that stands still."""
    if getattr(request, "param", "memory") == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=1.0)
