"""What processes send adds up, whatever happens to them and to Redis, and hostile texts do no harm on the way."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from django.test import override_settings
from django.utils import timezone

from django_throttle import agent, limiter
from django_throttle.call_facts import Facts
from django_throttle.core import Rule
from django_throttle.exceptions import StoreError
from django_throttle.recording import RecordFlusher
from django_throttle.recording.process_rules import process_rules
from django_throttle.recording.read import most_refused, recent, recorded_rules, sample
from django_throttle.recording.recorder import recorder
from django_throttle.stores import RedisStore
from tests.recording.calls import By, call, recorded
from tests.recording.test_recorder import refusal
from tests.servers import RedisServer, free_port, wait_until

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")
SPAWN = multiprocessing.get_context("spawn")
RULES = {"api": {"rate": "30/s", "key": "ip"}, "all": {"rate": "1000000/s", "key": "everyone"}}


class Tally(ctypes.Structure):
    """What a process was told, which outlives it."""

    _fields_ = (
        ("calls", ctypes.c_long),
        ("refused", ctypes.c_long),
        ("degraded", ctypes.c_long),
        ("is_over", ctypes.c_bool),
    )


def decide(url: str, number: int, tally: Any, stop: Any) -> None:
    """Decide calls until it is to stop, or is killed."""
    django.setup()
    given = {"REDIS": url, "RULES": RULES, "DATABASE_RULES": False, "TESTS_IN_MEMORY": False}
    with override_settings(DJANGO_THROTTLE=given):
        who = By(f"ip:192.0.2.{number}")
        while not stop.is_set():
            decision = limiter.decide(Facts("search", ("request",), who))
            tally.calls += 1
            tally.refused += not decision.allowed
            tally.degraded += decision.degraded and decision.allowed
            time.sleep(0.002)
        agent.stop()
    tally.is_over = True


@pytest.fixture
def own_server(servers: None) -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_sums_are_those_of_what_was_decided_though_processes_die_and_redis_is_away(own_server: RedisServer) -> None:
    stop, tallies = SPAWN.Event(), [SPAWN.Value(Tally, lock=False) for _ in range(4)]
    workers = [
        SPAWN.Process(target=decide, args=(own_server.url, number, tally, stop), daemon=True)
        for number, tally in enumerate(tallies)
    ]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: all(tally.calls > 200 for tally in tallies), timeout=60)
        own_server.pause()
        wait_until(lambda: all(tally.degraded > 20 for tally in tallies), timeout=60)
        own_server.resume()
        store, least = RedisStore(own_server.url, deadline=5.0), tallies[0].calls
        everything = sum(tally.calls for tally in tallies)
        wait_until(lambda: recorded(store, "all").calls >= everything, timeout=60, every=0.1)
        workers[0].kill()
        workers[0].join()
        stop.set()
        wait_until(lambda: all(tally.is_over for tally in tallies[1:]), timeout=60)
        wait_until(lambda: {process.pid for process in process_rules(store)} <= {workers[0].pid}, timeout=20)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    ended = sum(tally.calls for tally in tallies[1:])
    for rule in ("api", "all"):
        for by_hour in (False, True):
            found = recorded(store, rule, by_hour=by_hour)
            assert ended + least <= found.calls <= ended + tallies[0].calls
    api, refused = recorded(store, "api"), sum(tally.refused for tally in tallies[1:])
    assert refused <= sum(api.refused.values()) <= refused + tallies[0].refused
    assert api.degraded > 0


def test_what_was_sent_without_an_answer_counts_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    flush, pipeline = RecordFlusher(store), store.pipeline
    call(store, [LIMITED], "user:1", 5)

    def unheard(calls: Any) -> Any:
        pipeline(calls)
        raise StoreError(None, "the answer is lost")  # type: ignore[arg-type]

    monkeypatch.setattr(store, "pipeline", unheard)
    with pytest.raises(StoreError):
        flush()
    monkeypatch.setattr(store, "pipeline", pipeline)
    call(store, [LIMITED], "user:1", 2)
    flush()
    flush()
    found = recorded(store, "api")
    assert (found.allowed, found.refused) == (3, {"exceeded": 4})
    assert [count for _, count, _ in most_refused(store, "api")] == [4]
    assert len(recent(store, "user:1")) == 4


def test_what_failed_in_part_is_sent_again(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(redis_url, deadline=5.0)
    flush, pipeline = RecordFlusher(store), store.pipeline
    call(store, [LIMITED, Rule("other", "5/hour")], "user:1", 5)
    monkeypatch.setattr(store, "pipeline", lambda calls: [OSError("full"), *pipeline(calls[1:])])
    with pytest.raises(StoreError):
        flush()
    monkeypatch.setattr(store, "pipeline", pipeline)
    flush()
    assert {rule: recorded(store, rule).calls for rule in ("api", "other")} == {"api": 5, "other": 5}


def test_redis_away_for_long_leaves_memory_bounded(servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["django_throttle.recording.recorder"], "MOST_CELLS", 50)
    store = RedisStore(f"redis://127.0.0.1:{free_port()}/0")
    flush = RecordFlusher(store)
    for number in range(80):
        recorder.happened(Facts("s", ("request",), By("a")), refusal(f"rule {number}", "user:1"), 0.001)
        if number % 10 == 0:
            with pytest.raises(StoreError):
                flush()
    taken = recorder.take()
    assert len(taken.cells) <= 50 + len({at for _, at in taken.cells}), "each minute has one for all that have none"


@pytest.mark.parametrize("text", ["\x00\n", "\ud800", "<b>{p}</b>", "x" * 1000, "{a}:rec:*"])
def test_hostile_texts_come_back_as_they_were(redis_url: str, text: str, settings: Any) -> None:
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RECORD_IDENTS": True}
    store = RedisStore(redis_url, deadline=5.0)
    recorder.happened(Facts(text, ("request",), By(text), method=text), refusal(text, text), 0.001)
    RecordFlusher(store)()
    assert recorded_rules(store, timezone.now() - timedelta(hours=1)) == [text]
    assert most_refused(store, text) == [(text, 1, 0)]
    (one,) = recent(store, text)
    assert (one.scope, one.method, one.rule) == (text[:100],) * 3
    now = timezone.now()
    assert len(sample(store, now - timedelta(hours=1), now + timedelta(seconds=1)).refused) == 1
