"""Which rules processes have in force: those that lag, are silent, or end."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.core.commands import Charge
from django_throttle.local_limits import flush
from django_throttle.recording.overview import overview
from django_throttle.recording.places import hashed
from django_throttle.recording.process_rules import RulesReporter, process_rules
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore, RedisStore
from tests.recording.test_flush import SPAWN, Tally, decide, until


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


def test_whom_dampers_suppress_in_all_processes(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes attempt far more than the limit under one ident; another one is within it."""
    monkeypatch.setattr(rulebook, "present", lambda: Snapshot([]))
    damper, stores = Rule("<b>account", "10/s", algorithm="damper"), [RedisStore(redis_url) for _ in range(2)]
    reporters = [RulesReporter(store, f"{number}") for number, store in enumerate(stores)]
    for store in stores * 2:
        for _ in range(500):
            store.local_limits.decide_damper(Charge(damper, "tenant:7", 1))
        store.local_limits.decide_damper(Charge(damper, "tenant:8", 1))
        flush(store.local_limits, store.aggregator)
    for reporter in reporters:
        reporter()
    (one,) = overview(stores[0], []).dampers
    assert (one.rule, one.tag, one.processes) == ("<b>account", hashed("tenant:7"), 2)
    assert one.factor > 0.9
    assert overview(stores[0], []).as_json()["dampers"] == [one._asdict()]
    assert "dampers" not in overview(stores[0], []).as_json()["processes"][0]
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RECORD_IDENTS": True}
    reporters[0]()
    assert {each.tag for each in overview(stores[0], []).dampers} == {"tenant:7", hashed("tenant:7")}


def test_dampers_of_a_store_in_memory() -> None:
    store = MemoryStore()
    for _ in range(1000):
        store.local_limits.decide_damper(Charge(Rule("account", "10/s", algorithm="damper"), "tenant:7", 1))
    flush(store.local_limits, store)
    assert [one.rule for one in overview(store, []).dampers] == ["account"]


def test_a_process_that_is_stopped_is_named_until_it_goes_on(redis_url: str) -> None:
    stop, tallies = SPAWN.Event(), [SPAWN.Value(Tally, lock=False) for _ in range(2)]
    workers = [
        SPAWN.Process(target=decide, args=(redis_url, number, tally, stop), daemon=True)
        for number, tally in enumerate(tallies)
    ]
    for worker in workers:
        worker.start()
    try:
        store, pid = RedisStore(redis_url, deadline=5.0), workers[0].pid
        assert pid is not None

        def states() -> dict[int, str]:
            return {process.pid: process.state for process in process_rules(store)}

        until(lambda: list(states().values()) == ["live"] * 2)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: sorted(states().values()) == ["live", "silent"])
        assert states()[pid] == "silent"
        assert f"process {pid} on " in overview(store, []).in_words
        os.kill(pid, signal.SIGCONT)
        until(lambda: list(states().values()) == ["live"] * 2)
        stop.set()
        until(lambda: not states())  # those that end as they should are forgotten
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
