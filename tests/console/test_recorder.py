"""The recorder of a process: sums stay right under threads and attacks, and memory has bounds."""

import json
import random
import threading
from datetime import timedelta
from time import perf_counter
from typing import Any

import pytest
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.console.recording.cells import CODES, minute_of
from django_throttle.console.recording.heavy_hitters import CUT_FACTOR, MAX_IDENTS, HeavyHitters
from django_throttle.console.recording.read import compare_candidate
from django_throttle.console.recording.recorder import MAX_CELLS, MAX_RANKINGS, DecisionRecorder, Records, recorder
from django_throttle.console.recording.redis_keys import MAX_RECENT_ENTRIES
from django_throttle.core import Decision, Rule
from django_throttle.core.commands import charges_of
from django_throttle.core.decision import Outcome, Reason
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import Candidate, is_in_share
from django_throttle.identity.call import Call
from django_throttle.limiter import execute_decision, prepare_decision
from django_throttle.rulebook import Snapshot
from django_throttle.stores import MemoryStore
from django_throttle.stores.base import BlockingIo
from tests.console.conftest import By, call

ROOMY = Rule("roomy", "1000000/s")


def refusal(rule: str, ident: str, reason: Reason = Reason.EXCEEDED) -> Decision:
    outcome = Outcome(rule, ident, False, 1, 0, 1.0, 1.0, reason)
    return Decision(False, 1, 0, 1.0, 1.0, rule, (outcome,))


def call_by(ident: str, **given: Any) -> Call:
    return Call(**{"scope": "search", "events": ("request",), "caller": By(ident), **given})  # type: ignore[arg-type]


def total(records: Records, code: int) -> int:
    return sum(cell.get(code, 0) for cell in records.cells.values())


def allowed(records: Records) -> int:
    return sum(minute_of(0, cell).allowed for cell in records.cells.values())


def test_threads_lose_nothing() -> None:
    made, charges, taken = DecisionRecorder(), charges_of(ROOMY, "user:1", 1), []
    each, threads = 5000, 4

    def work() -> None:
        for _ in range(each):
            made.record_allowed(charges, "search", "GET", ("request",), perf_counter())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for one in workers:
        one.start()
    while any(one.is_alive() for one in workers):
        taken.append(made.take())
    taken.append(made.take())
    assert sum(allowed(one) for one in taken) == each * threads


def test_memory_is_bounded_under_a_flood_of_identities() -> None:
    made = DecisionRecorder()
    for number in range(24_000):
        if number % 4:
            texts = f"scope {number}", f"M{number}", (f"event {number}",)
            made.record_allowed(charges_of(ROOMY, f"ip:{number}", 1), *texts, perf_counter())
        else:
            made.record(call_by(""), refusal(f"rule {number}", f"user:{number}"), 0.001)
    found = made.take()
    assert (allowed(found), total(found, CODES[Reason.EXCEEDED])) == (18_000, 6000)
    minutes = len({at for _, at in found.cells})
    assert len(found.cells) <= MAX_CELLS + minutes  # each minute has one for all that have none
    assert len(found.rankings) <= MAX_RANKINGS + 3
    assert all(
        len(sample.entries) <= MAX_RECENT_ENTRIES[stratum] * 4 // 3 for (stratum, _), sample in found.samples.items()
    )


def test_a_rule_of_several_rates_counts_once() -> None:
    store = MemoryStore()
    both = Rule("api", rates=("2/s", "3/hour"), algorithm="sliding_log")
    call(store, [both], "user:1", 4)
    (cell,) = recorder.take().cells.values()
    found = minute_of(0, cell)
    assert (found.allowed, found.refused) == (2, {"exceeded": 2})


def test_a_rule_and_its_candidate_are_compared_on_the_same_calls() -> None:
    store, share = MemoryStore(), 0.5
    io, candidate = BlockingIo(store), Candidate.of("api", Rule("api", "3/h", algorithm="sliding_log"), share)
    snapshot = Snapshot([Rule("api", "5/h", algorithm="sliding_log")], candidates=[candidate])
    within = 0
    for number in range(20):
        ident = f"user:{number}"
        made = Call("search", ("request",), By(ident), ident=ident)
        within += is_in_share(ident, share, secret_bytes(conf().KEY_SECRET))
        for _ in range(7):
            execute_decision(io, prepare_decision(io, snapshot, made, True), made)
    now = timezone.now()
    comparison = compare_candidate(store, "api", now - timedelta(minutes=5), now + timedelta(minutes=5))
    without = 20 - within
    assert 0 < within < 20
    assert comparison.of_candidate == (7 * within, 4 * within)
    assert comparison.of_live == (7 * without, 2 * without)
    assert dict(comparison.rows())["Refused where the candidate holds"] == f"{4 * within} of {7 * within}, 57.1%"
    assert sum(count for _, count in comparison.affected) == 4 * 20
    later = compare_candidate(store, "api", now + timedelta(minutes=5), now + timedelta(minutes=10))
    assert (later.calls, later.affected) == (0, ()), "another candidate of this rule"
    assert json.loads(json.dumps(comparison.as_json()))["live_holds"] == {"calls": 7 * without, "refused": 2 * without}


@pytest.mark.parametrize("processes", [1, 5])
def test_counts_lack_no_more_than_they_say_and_that_has_a_bound(processes: int) -> None:
    draw = random.Random(11)
    true: dict[str, int] = {}
    whole, parts = HeavyHitters(), [HeavyHitters() for _ in range(processes)]
    for _ in range(30_000):
        ident = f"user:{int(draw.paretovariate(0.6)) % 100_000}"
        true[ident] = true.get(ident, 0) + 1
        draw.choice(parts).add(ident)
    for part in parts:
        assert len(part.counts) <= MAX_IDENTS * CUT_FACTOR
        whole.merge(part)
    found = {ident: count for ident, count, _ in whole.largest()}
    assert len(found) <= MAX_IDENTS
    assert 0 < whole.error <= 30_000 / (MAX_IDENTS + 1)
    for ident, number in true.items():
        assert number - whole.error <= found.get(ident, 0) <= number
    assert next(iter(found)) == max(true, key=lambda one: true[one])
