"""Records of a store in memory: kept by this process, for a day."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_throttle.core import Rule
from django_throttle.recording import own_records
from django_throttle.stores import MemoryStore
from tests.recording.calls import call, recorded

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")


def test_a_store_in_memory_keeps_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryStore(), timezone.now()
    call(store, [LIMITED], "user:1", 4)
    assert recorded(store, "api").allowed == 3
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(days=1, hours=2))
    assert own_records.current().cells == {}
