"""Records of a store in memory: kept by this process, for a day."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle import stores
from django_throttle.core import Rule
from django_throttle.recording import own_records, recorder
from django_throttle.recording.recorder import Records
from django_throttle.stores import MemoryStore
from tests.forks import holds_in_child
from tests.recording.calls import call, recorded

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")


def test_a_store_in_memory_keeps_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryStore(), timezone.now()
    call(store, [LIMITED], "user:1", 4)
    assert recorded(store, "api").allowed == 3
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(days=1, hours=2))
    assert own_records.current().cells == {}


@pytest.mark.usefixtures("servers")
def test_a_child_does_not_wait_for_a_thread_of_its_parent(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, held = os.getpid(), []

    def take() -> Records:
        if os.getpid() == parent:
            held.append(holds_in_child(own_records.current))
        return Records()

    def build() -> MemoryStore:
        if os.getpid() == parent:
            held.append(holds_in_child(stores.get_store))
        return MemoryStore()

    monkeypatch.setattr(recorder, "take", take)
    own_records.current()
    monkeypatch.setattr(stores, "MemoryStore", build)
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "STORE": "memory"}
    stores.get_store()
    assert held == [True, True]
