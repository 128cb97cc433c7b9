"""The campaign can fail: histories by hand in which one thing is wrong; and a seed makes the same plan twice."""

from __future__ import annotations

from itertools import islice, pairwise
from math import inf
from pathlib import Path

import pytest

from tests.campaign.__main__ import unplayed
from tests.campaign.checks import IN_FORCE, QUIET, STALE, check
from tests.campaign.database import SQLiteFile, database, kept, postgresql
from tests.campaign.history import Edit, Fault, Heard, History, Operation, Returned
from tests.campaign.limits import LIMIT, LIMITS, SETTINGS, SLOTS
from tests.campaign.plan import ALL_ROUNDS, CALM_FROM, CLIENTS, EDITED, FAULTS, REST_SECONDS, SERVERS, Round, Step
from tests.servers import slack

LOG, SLOT, TALLY = LIMITS["log"], LIMITS["slots"], LIMITS["tally"]
USED = ("log", "slots", "tally", "local_log", "calm", "queue", "ahead", "damped", "door", "prepaid")
ONLY = {name: LIMITS[name] for name in USED}


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
    shared = calls("local_log", LIMIT) + calls("local_log", LIMIT // 3, alone=True)
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


@pytest.mark.parametrize(("name", "late", "excused"), [("tally", 0.16, 0.14), ("prepaid", 1.16, 1.14)])
def test_a_late_answer(name: str, late: float, excused: float) -> None:
    starved, stopped = Fault(0.0, 0.1, "starve"), Fault(0.05, 0.1, "stop client", process=0)
    assert broken(calls(name, 1, took=slack(excused))) == []
    assert broken(calls(name, 1, took=slack(late)), stopped) == []
    for other in (stopped._replace(process=1), stopped.later(9.0)):
        assert len(broken(calls(name, 1, took=slack(late)), other)) == 1
    assert broken(calls(name, 1, took=slack(late)))[0].startswith("1 answers later than ")
    assert broken(calls(name, 1, took=slack(late)), starved) == []
    assert len(broken(calls(name, 1, took=slack(late + 0.25)), starved)) == 1


def test_a_late_release() -> None:
    assert broken(calls("slots", 1, end=1.0, freed=slack(0.14))) == []
    assert broken(calls("slots", 1, end=1.0, freed=slack(0.16)))[0].startswith("1 releases later than ")


def test_an_immortal_key_and_a_surprise() -> None:
    assert broken([], immortal=["dt:{x}:r"]) == ["without a TTL: dt:{x}:r"]
    assert broken([], odd=["process 1: ValueError"]) == ["process 1: ValueError"]


def test_a_damper_that_has_settled_and_lets_too_much_pass() -> None:
    """Each process keeps to its bound all the time; 60 a second are the limit, for all of them together."""
    limit, too_much = (
        [one for process in range(3) for one in calls("damped", round(18 / every), every=every, process=process)]
        for every in (0.04, 0.032)
    )
    assert broken(limit) == []
    assert broken(too_much)[0].endswith(", at most 540 in 6 s")
    assert broken(too_much, Fault(8.0, 8.1, "kill", 1)) == []


def edited(*edits: tuple[int, float]) -> list[Edit]:
    return [Edit(limit, at, at + 0.01) for limit, at in edits]


def test_an_answer_by_a_rule_that_is_no_longer_in_force() -> None:
    edits = edited((20, 0.0), (30, 2.0))
    before, after = calls("door", 1, said=20, begin=1.0), calls("door", 1, said=30, begin=2.005)
    soon, late = (calls("door", 1, said=20, begin=2.01 + seconds) for seconds in (IN_FORCE - 0.1, IN_FORCE + 0.1))
    wrong = ["door: 1 answers go by a limit that is not in force"]
    assert broken([*before, *soon, *after], edits=edits) == []
    assert broken([*before, *late, *after], edits=edits) == wrong
    assert broken([*before, *late], Fault(2.5, 2.6, "lock database"), edits=edits) == []
    assert broken([*before, *late], Fault(1.5, 1.6, "kill primary", 1), edits=edits) == [], "the telling was lost"
    assert broken([*before, *calls("door", 1, said=30, begin=1.5)], edits=edits) == wrong, "nobody has written that yet"


def test_an_answer_by_the_rule_of_settings() -> None:
    """It holds until a process has read the database, and no longer."""
    edits = edited((20, 0.0))
    first, late = calls("door", 1, said=LIMIT, begin=5.0), calls("door", 1, said=LIMIT, begin=5.1 + IN_FORCE)
    assert LIMIT not in EDITED
    assert broken(first, edits=edits) == []
    assert len(broken([*first, *late], edits=edits)) == 1
    assert broken([*first, *late], Fault(4.0, 5.0, "start without database"), edits=edits) == []


def test_a_process_at_rest_that_does_not_hear_of_the_last_edits() -> None:
    """Faults are over: the last one has a second, and the one before it until breakers have closed."""
    first, last = edited((20, 15.0), (30, 40.0))

    def heard(*seconds: float, before: float = 0.0) -> list[Heard]:
        known = [Heard(process, first, first.end + before, 20) for process in range(3)]
        return [*known, *(Heard(process, last, last.end + each, 30) for process, each in enumerate(seconds))]

    assert broken([], heard=heard(0.0, -0.001, IN_FORCE - 0.1, before=QUIET - 0.1)) == []
    assert broken([], heard=heard(0.0, 0.0, IN_FORCE + 0.1))[0].startswith("process 2: 30 is not in force after ")
    assert len(broken([], heard=heard(0.0, 0.0, 0.0, before=QUIET + 0.1))) == 3
    deaf = [*heard(0.0), Heard(1, last, inf, LIMIT)]
    assert broken([], heard=deaf) == [f"process 1: 30 is not in force after {IN_FORCE:g} s, {LIMIT} is"]


def test_a_lease_that_an_old_copy_brings_back() -> None:
    both = [*calls("slots", 1, lease="closed", end=1.0), *calls("slots", 1, lease="kept", end=9.0)]

    def returned(seconds: float, *leases: str) -> list[Returned]:
        return [Returned(2.0, [(2.5, frozenset(["closed", "kept"])), (2.5 + seconds, frozenset(leases))])]

    soon, late = STALE - 0.1, STALE + 0.1
    assert broken(both, copies=returned(soon, "closed", "kept")) == broken(both, copies=returned(late, "kept")) == []
    (found,) = broken(both, copies=returned(late, "closed", "kept"))
    assert found.startswith("1 of 1 leases of an old copy are left after ")
    assert broken(both, Fault(2.4, 2.9, "stop client"), copies=returned(late, "closed")) == []
    assert broken(both, copies=returned(late, "closed"), killed={0: 2.2}) == []


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


def test_so_many_rounds_play_every_fault_on_every_server_whatever_the_seed() -> None:
    for seed in range(40):
        assert unplayed([Round(seed, number) for number in range(ALL_ROUNDS)]) == []
    for kind in FAULTS["Valkey"][-1:] + CLIENTS[-1:]:
        rounds = [Round(1, number) for number in range(ALL_ROUNDS) if kind[0] not in str(Round(1, number).faults())]
        assert any(kind[0] in lacking for lacking in unplayed(rounds))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faults_of_a_lane_follow_each_other_and_those_of_its_turn_are_whole(seed: int) -> None:
    for this in (Round(seed, number) for number in range(100)):
        for lane, steps in zip((this.server, "clients"), this.faults(), strict=True):
            least = {name: seconds for name, seconds, _ in FAULTS.get(lane, CLIENTS)}
            assert all(one.at + one.seconds <= later.at for one, later in pairwise(steps))
            assert all(one.at >= 0.5 for one in steps)
            if this.is_calm:
                assert all(one.at + one.seconds <= CALM_FROM for one in steps)
            else:
                assert steps[0].seconds >= least.get(steps[0].name, 0.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_database_that_is_lost_is_asked_by_processes_that_have_closed_their_connections(seed: int) -> None:
    found = 0
    for this in (Round(seed, number) for number in range(100)):
        edits = this.edits()
        assert edits[0][0] == 0.0 and all(one[1] != later[1] for one, later in pairwise(edits))
        for lost in (step for step in this.faults()[1] if step.name == "lose database"):
            inside = [at for at, _ in edits if lost.at < at < lost.at + lost.seconds]
            before = [at for at, _ in edits if 0.0 < lost.at - at < REST_SECONDS and not lost_at(this, at)]
            assert len(inside) == 1 and (not before or before == [0.0])
            found += not before
    assert found > 5


def lost_at(this: Round, at: float) -> list[Step]:
    """The losses of the database at a moment."""
    return [one for one in this.faults()[1] if one.name == "lose database" and one.at < at < one.at + one.seconds]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_silences_are_long_and_copies_are_old_enough(seed: int) -> None:
    rounds = [Round(seed, number) for number in range(100)]
    lanes = [this.faults() for this in rounds]
    silent = [step.seconds for _, of_clients in lanes for step in of_clients if step.name == "silence client"]
    assert max(silent) > float(SETTINGS["PROCESS_TTL"]), "so that a living process is taken for dead"
    copied, back = ([step.at for one, _ in lanes for step in one if step.name == name] for name in ("copy", "old copy"))
    ages = [later - at for at, later in zip(copied, back, strict=True)]
    assert min(ages) < 1.0 and max(ages) > 3.0, "slots are closed between a copy and the restart from it"


def test_two_minutes_play_all_servers_both_databases_and_one_calm_round() -> None:
    for seed in range(4):
        rounds = [Round(seed, number) for number in range(4)]
        assert {this.server for this in rounds} == set(SERVERS)
        assert {this.database for this in rounds} == {"SQLite", "PostgreSQL"}
        assert [this.is_calm for this in rounds].count(True) == 1


def test_a_round_says_where_it_keeps_its_rules_without_postgresql(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.databases.PLACES", ())
    postgresql.cache_clear()
    assert kept("SQLite") == "SQLite"
    assert kept("PostgreSQL").startswith("SQLite in place of PostgreSQL (initdb is not installed")
    assert isinstance(database("PostgreSQL", tmp_path), SQLiteFile)
