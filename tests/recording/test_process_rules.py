"""Which rules processes have in force: those that lag, are silent, or end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.recording.process_rules import RulesReporter, process_rules
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore, RedisStore


def test_a_process_that_lags_or_is_silent_is_named(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = RedisStore(redis_url, deadline=5.0), timezone.now()
    one, other, stopped = (RulesReporter(store, uid) for uid in ("one", "other", "stopped"))
    old, new = Snapshot([]), Snapshot([Rule("api", "5/min")])
    monkeypatch.setattr(rulebook, "present", lambda: old)
    for each in (one, other, stopped):
        each()
    assert [process.state for process in process_rules(store)] == ["live"] * 3
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(seconds=10))
    monkeypatch.setattr(rulebook, "present", lambda: new)
    one()
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(seconds=14))
    one()
    monkeypatch.setattr(rulebook, "present", lambda: old)
    other()
    assert {process.uid: process.state for process in process_rules(store)} == {
        "one": "live", "other": "lags", "stopped": "silent",
    }  # fmt: skip
    one.end()
    assert {process.uid for process in process_rules(store)} == {"other", "stopped"}
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(seconds=125))
    assert {process.uid for process in process_rules(store)} == {"other"}
    assert process_rules(MemoryStore()) == []
