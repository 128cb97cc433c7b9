"""Reports are sent in batches: an outage loses none of them, and the last of very many is as true as the first."""

from __future__ import annotations

import pytest

from django_throttle.damper.aggregate import SUB, Reply
from django_throttle.local_limits import JITTER, Flusher
from tests.clock import FrozenClock
from tests.damper.conftest import Away, Process


def test_while_the_store_is_away_the_factor_decays_toward_the_fair_share(process: Process, store: Away) -> None:
    process.run(20, 400)
    process.limits.processes = 4
    store.is_away = True
    assert process.run(3, 400) == pytest.approx(100, rel=0.1), "a lost report or two change nothing"
    process.run(20, 400)
    assert process.run(10, 400) == pytest.approx(25, rel=0.2)
    assert process.run(30, 20) and process.run(10, 20) == pytest.approx(20), "its share passes"


def test_what_was_counted_while_the_store_was_away_is_told_with_its_own_time(
    process: Process, store: Away, clock: FrozenClock
) -> None:
    process.run(1, 10)
    process.flush()
    store.is_away = True
    clock.to(SUB)
    process.run(SUB, 20)
    process.run(1, 30)
    process.flush()
    store.is_away = False
    process.flush()
    (reply,) = store.aggregates.damp(store.asked)  # type: ignore[arg-type]
    assert [count.attempted for count in reply.counts] == [31, 120, 10, 0]


def test_of_very_many_reports_the_last_are_counted_too(
    process: Process, store: Away, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_throttle.local_limits.BATCH", 10)
    process.run(1, 10)
    process.flush()
    taken = []

    def slowly(reports: list[object]) -> list[Reply]:
        replies = store.aggregates.damp(reports)  # type: ignore[arg-type]
        taken.extend(reply.taken for reply in replies)
        clock.step(0.9)
        return replies

    monkeypatch.setattr(store, "damp", slowly)
    for number in range(40):
        process.attempt(f"u{number}")
    process.flush()
    assert taken == [True] * 40


def test_processes_do_not_flush_at_the_same_time(process: Process, store: Away) -> None:
    flusher = Flusher(process.limits, store, lambda: 3)  # type: ignore[arg-type]
    interval = process.limits.interval
    firsts, waits = {flusher.first for _ in range(50)}, {flusher() for _ in range(50)}
    assert len(firsts) == len(waits) == 50
    assert min(firsts) >= 0 and max(firsts) <= interval
    assert interval <= min(waits) and max(waits) <= interval * (1 + JITTER)
    assert process.limits.processes == 3
