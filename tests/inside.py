"""Private places of the package that several tests need, each in one line here, so that a new name is followed here.

A test goes through the public names wherever it can. These stand for what no caller can do or see: a store in place
of the settings' store, a fork at a bad moment, a failure between two steps, what is kept in memory.
"""

from types import ModuleType
from typing import Any

import pytest
from django.core.signals import setting_changed

from django_throttle import stores
from django_throttle.rulebook import current_rules
from django_throttle.runtime import LogThrottle


def count_in(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doors count in this store, until the settings change."""
    monkeypatch.setattr(stores, "_store", store)


def counters(store: Any) -> dict[tuple[str, str], tuple[Any, int]]:
    """What a memory store has counted: the state and when it ends, by rule id and ident."""
    return store._counters


def book() -> Any:
    return current_rules._state


def forget_rules() -> None:
    """The rules are read again, as if the database were another."""
    setting_changed.send(sender=None, setting="DATABASES", value=None, enter=False)


def unsaid(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module has complained of nothing yet."""
    monkeypatch.setattr(module, "_log_throttle", LogThrottle())


def commands_to(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    commands: list[Any] = []
    execute, aexecute = store.execute, store.aexecute

    def count(command: Any) -> Any:
        commands.append(command)
        return execute(command)

    async def acount(command: Any) -> Any:
        commands.append(command)
        return await aexecute(command)

    monkeypatch.setattr(store, "execute", count)
    if store.is_remote:  # in memory the one calls the other
        monkeypatch.setattr(store, "aexecute", acount)
    return commands
