"""Stores in Redis and in memory. ``get_store`` returns the store of the settings."""

from __future__ import annotations

import sys
from threading import Lock

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle import detect_test_run
from django_throttle.conf import conf
from django_throttle.core.texts import translatable
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
_for_tests: MemoryStore | None = None  # replaces Redis in a test run


def get_store() -> AnyStore:
    """Return the store of the settings, which this process shares. Raise InvalidSetting if they name none.

    In a test run of the site, return a memory store unless TESTS is "redis".
    """
    global _store
    if _pinned is not None:
        return _pinned
    if _store is None:
        with _lock:
            if _store is None:
                _store = _build()
    if detect_test_run.declared is False or not _store.is_remote:  # first, as each frame of a socket calls this
        return _store
    may_be_test_run = detect_test_run.declared or detect_test_run.DJANGO_TESTS in sys.modules
    if may_be_test_run and detect_test_run.counts_in_memory() and conf().TESTS != "redis":
        return _store_for_tests()
    return _store


def why_in_memory() -> str:
    """Return why ``get_store`` counts in memory, as the beginning of a sentence."""
    if _pinned is not None:
        return translatable("This test counts in a store of its own, in memory")
    if conf().STORE == "memory":
        return translatable('DJANGO_THROTTLE["STORE"] is "memory"')
    return translatable('Tests count in memory, as DJANGO_THROTTLE["TESTS"] is not "redis"')


def pin(store: AnyStore | None) -> AnyStore | None:
    """Make ``get_store`` return this store, or with None the store of the settings again.

    Return the store that was pinned before.
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
    settings = conf()
    if settings.STORE == "memory":
        return MemoryStore()
    if settings.STORE != "redis":
        raise InvalidSetting(f"STORE is 'redis' or 'memory', not {settings.STORE!r}")
    try:
        return RedisStore(
            settings.REDIS,
            prefix=settings.PREFIX,
            secret=settings.KEY_SECRET,
            deadline=settings.DEADLINE,
            processes=settings.PROCESSES,
        )
    except InvalidSetting as error:
        raise InvalidSetting(f"REDIS: {error}") from error


@receiver(setting_changed, dispatch_uid="django_throttle.stores")
def _forget(*, setting: str, **_: object) -> None:
    global _for_tests, _store
    if setting in ("DJANGO_THROTTLE", "CACHES", "SECRET_KEY"):
        _store = _for_tests = None
