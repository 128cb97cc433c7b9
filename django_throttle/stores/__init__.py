"""The stores, Redis and memory; ``get_store`` returns the one that the settings name."""

from __future__ import annotations

import sys
from threading import Lock

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle import detect_test_run
from django_throttle.conf import conf
from django_throttle.core.texts import gettext_lazy
from django_throttle.exceptions import InvalidSetting
from django_throttle.runtime import in_child
from django_throttle.stores.memory import MemoryStore
from django_throttle.stores.redis.store import RedisStore

__all__ = ["AnyStore", "MemoryStore", "RedisStore", "get_store", "why_in_memory"]

AnyStore = MemoryStore | RedisStore

_lock = Lock()
in_child(sys.modules[__name__], lambda module: vars(module).update(_lock=Lock()))
_store: AnyStore | None = None
_pinned: AnyStore | None = None
_for_tests: MemoryStore | None = None  # in place of a Redis that a test run did not ask for


def get_store() -> AnyStore:
    """The store that the settings name, one for this process; raises InvalidSetting when they name none.

    In a test run of the site it counts in memory, unless TESTS_IN_MEMORY is off.
    """
    global _store
    if _pinned is not None:
        return _pinned
    if _store is None:
        with _lock:
            if _store is None:
                _store = _build()
    if detect_test_run.declared is False or not _store.is_remote:  # each frame of a socket asks
        return _store
    may_be_one = detect_test_run.declared or detect_test_run.DJANGO_TESTS in sys.modules
    if may_be_one and detect_test_run.counts_in_memory() and conf().TESTS_IN_MEMORY:
        return _store_for_tests()
    return _store


def why_in_memory() -> str:
    """Why ``get_store`` counts in memory, to begin a sentence with."""
    if _pinned is not None:
        return gettext_lazy("This test counts in a store of its own, in memory")
    if conf().STORE == "memory":
        return gettext_lazy('DJANGO_THROTTLE["STORE"] is "memory"')
    return gettext_lazy('Tests count in memory, as DJANGO_THROTTLE["TESTS_IN_MEMORY"] is True')


def pin(store: AnyStore | None) -> AnyStore | None:
    """Count in this store, whatever the settings name, until another is pinned; None ends it.

    Returns what was pinned before.
    """
    global _pinned
    before, _pinned = _pinned, store
    return before


def _store_for_tests() -> MemoryStore:
    global _for_tests
    if _for_tests is None:
        with _lock:
            if _for_tests is None:
                _for_tests = MemoryStore()
    return _for_tests


def _build() -> AnyStore:
    chosen = conf()
    if chosen.STORE == "memory":
        store = MemoryStore()
        store.local_limits.interval = chosen.DAMPER_INTERVAL
        return store
    if chosen.STORE != "redis":
        raise InvalidSetting(f"STORE is 'redis' or 'memory', not {chosen.STORE!r}")
    try:
        return RedisStore(
            chosen.REDIS,
            prefix=chosen.PREFIX,
            secret=chosen.KEY_SECRET,
            deadline=chosen.DEADLINE,
            max_connections=chosen.MAX_CONNECTIONS,
            lease_ttl=chosen.CONNECTION_TTL,
            processes=chosen.PROCESSES,
        )
    except InvalidSetting as error:
        raise InvalidSetting(f"REDIS: {error}") from error


@receiver(setting_changed, dispatch_uid="django_throttle.stores")
def _forget(*, setting: str, **_: object) -> None:
    global _for_tests, _store
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        _store = _for_tests = None
