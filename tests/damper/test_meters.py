"""Meters by the clock: who is refused how often, and what is told when."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from django_throttle.core import Decision, Reason, Rule
from django_throttle.core.commands import Charge
from django_throttle.damper.aggregate import KEPT, SUB, Aggregates, Reply
from django_throttle.damper.flush import flush
from django_throttle.damper.meters import IDLE, Meters
from django_throttle.exceptions import Cause, StoreError
from tests.clock import START, FrozenClock
from tests.forks import holds_in_child
from tests.inside import cache, lock_of

RULE = Rule("account", "100/s", algorithm="damper")


class Away:
    """An aggregator that may be away; ``asked`` are the reports of the last round trip."""

    def __init__(self, clock: FrozenClock) -> None:
        self.aggregates = Aggregates(clock)
        self.is_away = False
        self.asked: list[object] = []

    def damp(self, reports: list[object]) -> list[object]:
        self.asked = list(reports)
        if self.is_away:
            raise StoreError(Cause.UNAVAILABLE)
        return list(self.aggregates.damp(reports))  # type: ignore[arg-type]


class Process:
    """A process with one damper rule, on the test's clock, which reports every two seconds when it is told to run."""

    def __init__(self, clock: FrozenClock, store: Away, rule: Rule = RULE, seed: int = 7) -> None:
        self.clock, self.store, self.rule = clock, store, rule
        self.meters = Meters(lambda: clock() - START + 5.0, random.Random(seed).random)
        self.flush_at = clock.now_us + 2_000_000

    def attempt(self, ident: str = "u", cost: int = 1) -> Decision:
        return self.meters.decide(Charge(self.rule, ident, cost))

    def flush(self) -> None:
        self.meters.due = self.meters.clock() + 2.0
        try:
            flush(self.meters, self.store)  # type: ignore[arg-type]
        except StoreError:
            pass

    def run(self, seconds: float, rate: float, ident: str = "u") -> float:
        """Attempts at this rate, evenly; returns the rate at which they passed."""
        passed, until = 0, self.clock.now_us + round(seconds * 1_000_000)
        for at in count():
            due = self.clock.now_us if not at else self.clock.now_us + round(1_000_000 / rate)
            if due >= until:
                break
            self.clock.now_us = due
            if self.clock.now_us >= self.flush_at:
                self.flush_at += 2_000_000
                self.flush()
            passed += self.attempt(ident).allowed
        self.clock.now_us = until
        return passed / seconds

    @property
    def factor(self) -> float:
        return self.meters.decide(Charge(self.rule, "u", 0), commit=False).outcomes[0].factor


@pytest.fixture
def store(clock: FrozenClock) -> Away:
    return Away(clock)


@pytest.fixture
def process(clock: FrozenClock, store: Away) -> Process:
    return Process(clock, store)


@pytest.mark.parametrize("times", [1.2, 2, 5, 20])
def test_one_process_alone_is_held_to_the_limit(clock: FrozenClock, store: Away, times: float) -> None:
    process = Process(clock, store)
    assert process.run(2, 100 * times) <= 150, "at once"
    process.run(18, 100 * times)
    settled = process.run(30, 100 * times)
    print(f"{times} times the limit at one process: {settled / 100:.3f} of it passes")
    assert 97 <= settled <= 103


def test_until_the_first_reply_only_the_local_limiter_holds(process: Process, store: Away) -> None:
    store.is_away = True
    assert process.run(1, 99) == pytest.approx(99, abs=1)
    assert process.run(1.9, 1000) <= 160
    assert process.attempt().outcomes[0].factor == 0


def test_a_refusal_says_when_the_next_factor_comes(process: Process, clock: FrozenClock) -> None:
    process.run(4.5, 1000)
    process.flush()
    clock.step(0.5)
    refused = next(decision for _ in range(100) if not (decision := process.attempt()).allowed)
    (outcome,) = refused.outcomes
    assert outcome.reason is Reason.SUPPRESSED and 0.8 < outcome.factor < 1
    assert refused.retry_after is not None
    assert refused.retry_after == pytest.approx(1.5, abs=0.002), "or sooner, where the local limiter holds"
    assert (refused.limit, refused.remaining, refused.rule) == (100, 0, "account")


def test_all_of_it_passes_again_after_an_excess(process: Process) -> None:
    process.run(20, 500)
    process.run(12, 80)
    assert process.run(10, 80) == pytest.approx(80)


def test_who_comes_back_after_a_rest_is_not_suppressed(process: Process, clock: FrozenClock) -> None:
    process.run(20, 500)
    assert process.factor > 0.7
    clock.step(2 * SUB)
    assert process.factor == 0 and process.attempt().allowed


def test_another_limit_is_in_force_at_once(process: Process) -> None:
    process.run(20, 400)
    assert process.factor == pytest.approx(0.75, abs=0.02)
    process.rule = replace(RULE, rate="200/s", limit=None)
    assert process.rule.id == RULE.id
    assert process.factor == pytest.approx(0.5, abs=0.02)
    process.rule = replace(RULE, rate="60000/min", limit=None)
    assert process.factor == 0, "whatever the window"


def test_a_shadow_counts_and_records(clock: FrozenClock, store: Away) -> None:
    process = Process(clock, store, Rule("account", "100/s", algorithm="damper", action="shadow"))
    assert process.run(20, 500) == pytest.approx(500)
    refused = [outcome for _ in range(100) for outcome in process.attempt().outcomes if not outcome.allowed]
    assert len(refused) > 60 and all(outcome.shadow for outcome in refused)


def test_a_peek_counts_nothing(process: Process, store: Away) -> None:
    for _ in range(1000):
        assert process.meters.decide(Charge(RULE, "u", 1), commit=False).allowed
    process.flush()
    assert store.asked == []


def test_what_all_processes_attempt_together_is_held_to_the_limit(clock: FrozenClock, store: Away) -> None:
    others = [Process(clock, store, seed=seed) for seed in range(4)]
    passed = [0] * 4
    for tick in range(30_000):  # 400 a second for 75 s
        clock.step(0.0025)
        process = others[tick % 4]
        if tick // 4 % 200 == 50 * (tick % 4):  # every two seconds, one after the other
            process.flush()
        passed[tick % 4] += process.attempt().allowed and tick >= 12_000
    print(f"passed of four processes at four times the limit: {[number / 45 for number in passed]}")
    assert sum(passed) / 45 == pytest.approx(100, rel=0.03)
    assert all(number / 45 == pytest.approx(25, rel=0.12) for number in passed)


def test_rare_and_costly_calls_of_many_processes_are_held_to_the_limit(clock: FrozenClock, store: Away) -> None:
    publishers = [Process(clock, store, seed=seed) for seed in range(20)]
    passed = 0
    for second in range(600):  # each publishes to 500 subscribers every 20 s: five times the limit
        clock.step(1)
        for publisher in publishers if second % 2 else ():
            publisher.flush()
        passed += 500 * (publishers[second % 20].attempt(cost=500).allowed and second >= 100)
    print(f"{passed / 500 / 100:.2f} of the limit passes")
    assert 0.7 <= passed / 500 / 100 <= 1.3


def test_who_is_suppressed_asks_no_longer_than_a_minute(clock: FrozenClock, store: Away) -> None:
    busy, rests = Process(clock, store), Process(clock, store)
    busy.run(10, 400)
    rests.attempt()
    rests.flush()
    asked = []
    for _ in range(120):
        busy.run(1, 400)
        store.asked = []
        rests.flush()
        asked.append(bool(store.asked))
    assert 50 <= sum(asked) <= 65 and not any(asked[65:]) and len(rests.meters) == 0


def test_while_the_store_is_away_the_factor_decays_toward_the_fair_share(process: Process, store: Away) -> None:
    process.run(20, 400)
    process.meters.processes = 4
    store.is_away = True
    assert process.run(3, 400) == pytest.approx(100, rel=0.1), "a lost report or two change nothing"
    process.run(20, 400)
    assert process.run(10, 400) == pytest.approx(25, rel=0.2)
    assert process.run(30, 20) and process.run(10, 20) == pytest.approx(20), "its share passes"


def test_a_rule_that_allows_while_the_store_is_away(clock: FrozenClock, store: Away) -> None:
    process = Process(clock, store, Rule("account", "100/s", algorithm="damper", on_store_failure="allow"))
    process.meters.processes = 4
    process.run(20, 400)
    store.is_away = True
    process.run(30, 90)
    assert process.run(10, 90) == pytest.approx(90, abs=0.1), "all that the local limiter lets through"


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


def test_what_no_estimator_looks_at_is_never_told(process: Process, store: Away, clock: FrozenClock) -> None:
    process.run(1, 10)
    process.flush()
    store.is_away = True
    process.run(KEPT * SUB, 10)
    clock.step(KEPT * SUB)
    store.is_away, store.asked = False, []
    process.flush()
    assert not any(report.counts for report in store.asked), store.asked  # type: ignore[attr-defined]


def test_attempts_before_the_time_is_known_go_where_they_belong(process: Process, store: Away) -> None:
    store.is_away = True
    process.run(SUB + 1, 20)
    process.flush()
    store.is_away = False
    process.flush()
    (reply,) = store.aggregates.damp(store.asked)  # type: ignore[arg-type]
    assert [count.attempted for count in reply.counts[:2]] == [20, 120]


def test_who_is_idle_is_not_reported_and_then_forgotten(process: Process, store: Away, clock: FrozenClock) -> None:
    process.run(3, 10)
    for _ in range(3):
        clock.step(2)
        process.flush()
    clock.step(2)
    process.flush()
    assert store.asked and len(process.meters) == 1
    store.asked = []
    process.flush()
    assert store.asked == []
    clock.step(IDLE)
    process.flush()
    assert len(process.meters) == 0 and store.asked == []


def test_meters_are_bounded_and_what_they_counted_is_told(clock: FrozenClock, store: Away) -> None:
    process = Process(clock, store)
    cache(process.meters).most = 10
    for number in range(25):
        process.attempt(f"u{number}")
    assert len(process.meters) == 10
    process.flush()
    told = [report for report in store.asked if report.counts]  # type: ignore[attr-defined]
    assert len(told) == 20, "as many again of those that had to go"


def test_of_very_many_reports_the_last_are_counted_too(
    process: Process, store: Away, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_throttle.damper.flush.BATCH", 10)
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


def test_where_the_local_limiter_has_no_room_no_factor_makes_any(process: Process, clock: FrozenClock) -> None:
    process.rule = Rule("account", "20/min", algorithm="damper")
    while (decision := process.attempt()).allowed:
        clock.step(0.001)
    assert decision.retry_after == pytest.approx(3, abs=0.01), "a call's worth, though the factor comes in two"


def test_a_clock_of_the_store_that_is_set_costs_what_was_not_told(
    process: Process, store: Away, clock: FrozenClock
) -> None:
    began = clock.now_us
    process.meters.clock = lambda: (began - START * 1_000_000) / 1_000_000 + 1  # ours stands still
    process.attempt()
    process.flush()
    process.attempt(cost=50)
    clock.step(-3600)
    process.flush()
    process.attempt(cost=7)
    process.flush()
    (reply,) = store.aggregates.damp(store.asked)  # type: ignore[arg-type]
    assert [count.attempted for count in reply.counts] == [7, 0, 0, 0]


def name_of(process: Process) -> str:
    return cache(process.meters)._name


def test_a_child_begins_with_nothing(process: Process, store: Away) -> None:
    process.run(1, 10)
    name = name_of(process)

    def claim() -> bool:
        process.flush()
        return len(process.meters) == 0 and store.asked == [] and name_of(process) != name

    assert holds_in_child(claim)
    process.flush()
    assert len(store.asked) == 1, "and its parent tells its own"


def test_a_child_is_no_hostage_to_a_lock(process: Process) -> None:
    with lock_of(process.meters):
        assert holds_in_child(lambda: process.attempt().allowed)
