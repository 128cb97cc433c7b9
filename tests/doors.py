"""What the tests of every door need: rules in force, on a store of the test's choice."""

from collections.abc import Callable
from typing import Any

import pytest

from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock
from tests.inside import count_in

Store = MemoryStore | RedisStore
Enforce = Callable[..., Store]

#: Middleware by which a request has its user.
LOGIN = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
BOTH = pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)
REDIS = pytest.mark.parametrize("enforce", ["redis"], indirect=True)


def enforcer(request: pytest.FixtureRequest, settings: Any, monkeypatch: Any, clock: FrozenClock) -> Enforce:
    """The fixture ``enforce``: puts rules (names and options) in force on the store that its parameter names.

    What has a name in capitals is a setting.
    """

    def enforce(**given: Any) -> Store:
        rules = {name: options for name, options in given.items() if not name.isupper()}
        own = {name: value for name, value in given.items() if name.isupper()}
        calm = {"DATABASE_RULES": False, "RETRY_JITTER": 0.0}
        settings.DJANGO_THROTTLE = {"RULES": rules, **calm, **own}
        # On a machine that stands still.
        monkeypatch.setattr("django_throttle.stores.redis.context.MAINTENANCE_SECONDS", 5.0)
        store = build(request, clock)
        count_in(store, monkeypatch)
        return store

    return enforce


def build(request: pytest.FixtureRequest, clock: FrozenClock) -> Store:
    """A store on a clock that stands still."""
    if getattr(request, "param", "memory") == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)
