"""The campaign can fail: histories by hand in which one thing is wrong; and a seed makes the same plan twice."""

from __future__ import annotations

from itertools import islice
from math import inf

from tests.campaign.checks import check
from tests.campaign.history import Fault, History, Operation
from tests.campaign.limits import LIMIT, LIMITS, SLOTS
from tests.campaign.plan import SERVERS, Round

LOG, SLOT, TALLY = LIMITS["log"], LIMITS["slots"], LIMITS["tally"]
ONLY = {name: LIMITS[name] for name in ("log", "slots", "tally", "local_log", "calm", "queue", "batched")}


def calls(name: str, number: int, *, begin: float = 0.0, every: float = 0.01, **more: object) -> list[Operation]:
    """So many that passed, one after the other."""
    times = [begin + every * place for place in range(number)]
    given = {"process": 0, "outcome": "ok", "took": 0.001, **more}
    return [Operation(limit=name, cost=1, invoked=at, returned=at + 0.001, **given) for at in times]  # type: ignore[arg-type]


def broken(operations: list[Operation], *faults: Fault, **found: object) -> list[str]:
    """The first line of all that does not hold."""
    history = History(operations, list(faults), 3, **found)  # type: ignore[arg-type]
    return [str(one).partition("\n")[0] for one in check(history, ONLY)]


def test_the_limit_and_one_more() -> None:
    assert broken(calls("log", LIMIT)) == []
    assert broken(calls("log", LIMIT) + calls("log", LIMIT, begin=2.0)) == []
    assert broken(calls("log", LIMIT + 1)) == ["log: 41 in 0.4010 s, at most 40 in 2 s"]
    assert broken([*calls("log", LIMIT), *calls("log", 5, begin=1.99)]) == ["log: 41 in 1.9910 s, at most 40 in 2 s"]


def test_the_smallest_window_is_shown() -> None:
    (found,) = check(History(calls("log", 30, every=0.03) + calls("log", 50, begin=1.0, every=0.005)), {"log": LOG})
    assert len(found.operations) == LIMIT + 1 and found.operations[0].invoked >= 1.0
    assert "process 0: 1 of log" in str(found) and "more" in str(found)


def test_a_loss_in_the_window_allows_one_limit_more() -> None:
    too_many = calls("log", 2 * LIMIT)
    kill = Fault(0.395, 0.399, "kill", 1)
    assert broken(too_many, kill) == []
    assert len(broken(too_many, Fault(5.0, 5.1, "kill", 1))) == 1
    assert len(broken([*calls("log", 1, begin=0.1), *too_many], kill)) == 1


def test_shares_come_on_top_only_for_local() -> None:
    (one,) = calls("local_log", 1)
    shared = calls("local_log", LIMIT + LIMIT // 3)
    assert broken(shared) == []
    assert len(broken([*shared, one])) == 1
    assert len(broken(calls("log", 1, alone=True))) == 1


def test_who_waits_goes_when_the_wait_is_over() -> None:
    """Fifty at once, which come one by one: no more than forty are let go in a window."""
    wait = [Operation(0, "queue", 1, 0.0, 0.001, "ok", wait=0.05 * place) for place in range(40)]
    assert broken(wait[:10]) == []
    together = [Operation(0, "queue", 1, at, at + 0.001, "ok", wait=2.0 - at) for at in (0.04 * n for n in range(41))]
    assert "queue: 41 in 0.0010 s, at most 40 in 2 s" in broken(together)


def test_a_call_that_was_not_counted_and_one_that_was_counted_twice() -> None:
    ten = calls("tally", 10)
    assert broken(ten, counted={"tally": 10}) == []
    assert broken(ten, counted={"tally": 9}) == ["tally: 9 counted, 10 surely, 10 at most"]
    assert broken(ten, counted={"tally": 11}) == ["tally: 11 counted, 10 surely, 10 at most"]
    ten[0].outcome = "unknown"
    assert broken(ten, counted={"tally": 9}) == broken(ten, counted={"tally": 10}) == []
    assert broken(ten, Fault(0.0, 0.1, "kill", 1), counted={"tally": 0}) == []


def test_one_slot_too_many_is_held_and_one_is_lost() -> None:
    held = calls("slots", SLOTS)
    given_back = calls("slots", 1, end=0.0515)
    assert broken(held) == []
    assert broken([*given_back, *calls("slots", SLOTS, begin=0.1)]) == []
    assert broken([*given_back, *calls("slots", SLOTS)]) == ["slots: 7 slots held at 0.0510, 6 allowed"]
    assert broken(held, held={"slots": (SLOTS, SLOTS)}) == []
    assert broken(held, held={"slots": (SLOTS + 1, SLOTS)}) == ["slots: the server counts 7 slots, 6 are held"]
    assert broken(held, held={"slots": (SLOTS - 1, SLOTS)}) == ["slots: the server counts 5 slots, 6 are held"]


def test_a_slot_that_a_process_grants_alone_though_it_is_to_deny() -> None:
    assert broken(calls("slots", 1, alone=True)) == ["slots: granted without the server"]


def test_a_process_that_was_killed_holds_nothing_any_more() -> None:
    dead = [*calls("slots", SLOTS), *calls("slots", 1, outcome="unknown", alone=True)]
    later = [Operation(1, "slots", 1, 1.0, 1.001, "ok")]
    assert broken([*dead, *later], killed={0: 0.9}) == []
    assert len(broken([*dead, *later], killed={0: 1.5})) == 1


def test_slots_that_were_forgotten_are_granted_again_until_all_have_registered() -> None:
    held, again = calls("slots", SLOTS), calls("slots", SLOTS, begin=1.0)
    assert broken([*held, *again], Fault(0.8, 0.9, "kill", 1, 1)) == []
    assert len(broken([*held, *calls("slots", 1, begin=9.0)], Fault(0.8, 0.9, "kill", 1, 1))) == 1


def test_a_late_answer_an_immortal_key_and_a_surprise() -> None:
    late = calls("tally", 1, took=0.9)
    assert broken(late)[0].startswith("1 answers later than ")
    assert broken(late, Fault(0.0, 0.1, "starve")) == []
    assert broken([], immortal=["dt:{x}:r"]) == ["without a TTL: dt:{x}:r"]
    assert broken([], odd=["process 1: ValueError"]) == ["process 1: ValueError"]


def test_a_process_that_admits_more_than_the_bound_of_a_batched_limit() -> None:
    """Each has it by itself, and a loss of the server's gives it no more."""
    kill = Fault(0.395, 0.399, "kill", 1)
    each = [one for process in range(3) for one in calls("batched", 2 * LIMIT, process=process)]
    assert broken(each, kill) == []
    assert broken([*each, *calls("batched", 1, begin=0.9)], kill) == ["batched: 81 in 0.9010 s, at most 80 in 2 s"]


def test_who_keeps_to_a_damped_limit_is_not_suppressed() -> None:
    assert len(broken(calls("calm", 1, outcome="refused"))) == 1


def test_what_never_returned_counts_for_nothing_and_only_the_dead_may_leave_it() -> None:
    lost = [Operation(0, "log", 1, at / 100, inf) for at in range(99)]
    assert broken(lost, killed={0: 1.0}) == []
    assert broken(lost) == ["99 calls have not been answered"]


def test_a_seed_is_the_same_plan_and_another_one_is_not() -> None:
    first, same, other = (Round(seed, 3) for seed in (7, 7, 8))
    assert first.faults() == same.faults() != other.faults()
    plans = [list(islice(one.calls(1, 2), 50)) for one in (first, same, other)]
    assert plans[0] == plans[1] != plans[2]
    assert {Round(7, number).server for number in range(4)} == set(SERVERS)
