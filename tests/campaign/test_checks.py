"""Each check has a history that just holds and one in which a unit, a slot or a moment more breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

import pytest

from tests.bounds import most
from tests.campaign import checks
from tests.campaign.checks import CHECKS, DAMPED, IN_FORCE, OWED, REPORTED, SETTLED, STALE, check
from tests.campaign.history import RECOVERY, Edit, Fault, Heard, History, Operation, Returned
from tests.campaign.limits import LIMIT, LIMITS, SLOTS
from tests.campaign.plan import PROCESSES
from tests.campaign.test_campaign import calls
from tests.servers import slack

LOCAL = [name for name, limit in LIMITS.items() if limit.kind == "rate" and limit.rule.on_store_failure == "local"]
SHARE = SLOTS // PROCESSES


class Pair(NamedTuple):
    """The limit of a check, None where it asks for all of them; a history that just holds, and one that does not."""

    limit: str | None
    holds: History
    breaks: History


def of(*operations: list[Operation], faults: tuple[Fault, ...] = (), **found: object) -> History:
    return History([one for many in operations for one in many], list(faults), PROCESSES, **found)  # type: ignore[arg-type]


def waiting(last: float) -> list[Operation]:
    """So many as may pass a queue in a window, and one more when the window is over, or somewhat sooner."""
    times = [0.04 * place for place in range(LIMIT)]
    return [Operation(0, "queue", 1, 0.0, 0.001, "ok", wait=wait) for wait in (*times, last)]


def queued(number: int) -> list[Operation]:
    """So many that are admitted at about the same time, and let go one by one."""
    times = [0.001 * place for place in range(number)]
    return [Operation(0, "queue", 1, at, at + 0.001, "ok", wait=50 * at) for at in times]


def copied(at: float) -> History:
    closed = calls("slots", 1, lease="closed", end=1.0)
    return of(closed, copies=[Returned(2.0, [(2.5, frozenset(["closed"])), (2.5 + at, frozenset(["closed"]))])])


def heard(seconds: float) -> History:
    edit = Edit(20, 5.0, 5.1)
    return of(heard=[Heard(0, edit, 5.1 + seconds, 20)])


def answered(seconds: float) -> History:
    return of(calls("door", 1, said=20, begin=1.0 + seconds), edits=[Edit(20, 0.0, 0.1), Edit(30, 0.9, 1.0)])


def attempted(every: float) -> History:
    """Each process keeps to its own bound, from the moment on at which all know of each other."""
    span = 3 * DAMPED + 4 * REPORTED
    return of(*(calls("damped", int(span / every), every=every, process=one) for one in range(PROCESSES)))


BURSTS = [*calls("sliding4", 40, every=0.005), *calls("sliding4", 39, begin=1.75, every=0.005)]
PAIRS = {
    "late": [
        Pair(None, of(calls("log", 1, took=slack(0.149))), of(calls("log", 1, took=slack(0.151)))),
        Pair(None, of(calls("slots", 1, freed=slack(0.149))), of(calls("slots", 1, freed=slack(0.151)))),
    ],
    "unanswered": [
        Pair(None, *(of([Operation(0, "log", 1, 1.0)], killed={process: 2.0}) for process in (0, 1))),
    ],
    "stale": [Pair(None, copied(STALE - 0.01), copied(STALE + 0.01))],
    "deaf": [Pair(None, heard(IN_FORCE - 0.01), heard(IN_FORCE + 0.01))],
    "rates": [
        *(
            Pair(name, *(of(calls(name, most(limit.rule) + more, every=0.005)) for more in (0, 1)))
            for name, limit in LIMITS.items()
            if limit.kind in ("rate", "door") and name not in ("sliding4", "queue")
        ),
        # No more than the limit in all sub-windows but one, and twice that less one in all of them.
        Pair("sliding4", of(calls("sliding4", 40, every=0.03)), of(calls("sliding4", 41, every=0.03))),
        Pair("sliding4", *(of(BURSTS, calls("sliding4", more, begin=1.95)) for more in (0, 1))),
        Pair("queue", *(of(queued(number)) for number in (49, 50))),
        Pair("queue", of(waiting(2.0)), of(waiting(1.9))),
        *(
            Pair(
                name,
                of(*(calls(name, most(share), process=one, alone=True) for one in range(PROCESSES + 1))),
                of(calls(name, most(share) + 1, alone=True)),
            )
            for name in LOCAL
            for share in [LIMITS[name].rule.share(PROCESSES)]
        ),
        Pair("log", of(calls("log", 1, alone=True, outcome="unknown")), of(calls("log", 1, alone=True))),
    ],
    "prepaid": [Pair("prepaid", of(calls("prepaid", LIMIT, every=0.04)), of(calls("prepaid", LIMIT + 1, every=0.04)))],
    "ahead": [Pair("ahead", *(of(calls("ahead", LIMIT + more, every=0.04)) for more in (0, 1)))],
    "dampers": [
        Pair("damped", of(calls("damped", 198)), of(calls("damped", 199))),
        Pair("damped", attempted(3 / 89), attempted(3 / 93)),
    ],
    "calm": [Pair("calm", of(calls("calm", 99)), of(calls("calm", 1, outcome="refused")))],
    "in_force": [Pair("door", answered(IN_FORCE - 0.01), answered(IN_FORCE + 0.01))],
    "tally": [
        Pair("tally", *(of(calls("tally", 9), counted={"tally": one}) for one in (9, 10))),
        Pair("tally", *(of(calls("tally", 9), counted={"tally": one}) for one in (9, 8))),
    ],
    "local_tally": [
        Pair("local_tally", *(of(calls("local_tally", 9), counted={"local_tally": one}) for one in (9, 10))),
        Pair("local_tally", *(of(calls("local_tally", 9), counted={"local_tally": one}) for one in (9, 8))),
    ],
    "leases": [
        Pair("slots", of(calls("slots", SLOTS)), of(calls("slots", SLOTS + 1))),
        Pair("local_slots", of(calls("local_slots", SLOTS)), of(calls("local_slots", SLOTS + 1))),
        Pair("slots", of(held={"slots": (3, 3)}), of(held={"slots": (4, 3)})),
        Pair("local_slots", of(held={"local_slots": (3, 3)}), of(held={"local_slots": (2, 3)})),
        Pair("slots", of(calls("slots", 1, outcome="unknown", alone=True)), of(calls("slots", 1, alone=True))),
    ],
}


def found_by(name: str, limit: str | None, history: History) -> Iterator[checks.Breach]:
    function = getattr(checks, name)
    if name == "late":
        return function(history, LIMITS)  # type: ignore[no-any-return]
    return function(history, LIMITS[limit]) if limit else function(history)  # type: ignore[no-any-return]


EACH = pytest.mark.parametrize(
    ("name", "pair"),
    [pytest.param(name, one, id=f"{name} {one.limit}") for name, few in PAIRS.items() for one in few],
)


@EACH
def test_a_check_holds_to_the_last_unit_and_not_beyond(name: str, pair: Pair) -> None:
    assert [str(one) for one in found_by(name, pair.limit, pair.holds)] == []
    assert len(list(found_by(name, pair.limit, pair.breaks))) >= 1


@EACH
def test_what_a_check_finds_is_part_of_the_verdict(name: str, pair: Pair) -> None:
    shown = {one.what for one in check(pair.breaks, LIMITS)}
    assert {one.what for one in found_by(name, pair.limit, pair.breaks)} <= shown


def test_every_check_has_its_pair_and_every_limit_a_check() -> None:
    of_limits = {function.__name__ for functions in CHECKS.values() for function in functions}
    assert set(PAIRS) == of_limits | {"late", "unanswered", "stale", "deaf"}
    assert {limit.kind for limit in LIMITS.values()} == set(CHECKS)
    covered = {pair.limit for pairs in PAIRS.values() for pair in pairs}
    assert covered == {name for name in LIMITS if name != "many"} | {None}


@pytest.mark.parametrize("name", LOCAL)
def test_a_process_whose_clock_is_set_has_its_share_again(name: str) -> None:
    """Only that one, and only in a window in which it was set."""
    share = most(LIMITS[name].rule.share(PROCESSES))
    more = calls(name, share + 1, alone=True, process=1)
    step = Fault(0.05, 0.051, "client clock", process=1)

    def broken(*faults: Fault) -> list[checks.Breach]:
        return list(checks.rates(of(more, faults=faults), LIMITS[name]))

    assert broken(step) == []
    for other in (step._replace(process=2), step.later(9.0), step._replace(name="starve"), Fault(0.0, 9.0, "kill", 1)):
        found = broken(other)
        assert found and all(one.what.startswith(f"process 1 alone, {name}: ") for one in found)


def alone(number: int, counted: int, *faults: Fault, **more: object) -> list[checks.Breach]:
    """What is found where so many were admitted alone at the eighth second, and ten before by the server."""
    calls_alone = calls("local_tally", number, begin=8.0, alone=True, **more)
    history = of(calls("local_tally", 10), calls_alone, faults=faults, counted={"local_tally": counted})
    return list(checks.local_tally(history, LIMITS["local_tally"]))


def test_what_was_admitted_alone_is_charged_once() -> None:
    """Twice only where the server had been asked, or has evicted the mark of the first time."""
    assert alone(5, 15, asked=False) == []
    assert len(alone(5, 14, asked=False)) == len(alone(5, 16, asked=False)) == 1
    assert alone(5, 15) == alone(5, 20) == []
    assert len(alone(5, 14)) == len(alone(5, 21)) == 1
    evict = Fault(9.0, 9.5, "evict", 1)
    assert alone(5, 20, evict, asked=False) == alone(5, 20, evict.later(-1.4), asked=False) == []
    assert len(alone(5, 21, evict, asked=False)) == 1
    assert len(alone(5, 16, evict.later(-1.6), asked=False)) == len(alone(5, 16, evict.later(OWED), asked=False)) == 1
    assert alone(5, 10, asked=False, outcome="unknown") == []
    assert len(alone(5, 11, asked=False, outcome="unknown")) == 1
    assert alone(5, 15, outcome="unknown") == []


def test_a_tally_of_what_was_never_sent() -> None:
    """A server that was not asked counts nothing."""
    for asked, counted, holds in ((True, 11, True), (False, 11, False), (False, 10, True)):
        perhaps = calls("tally", 1, alone=True, outcome="unknown", asked=asked)
        history = of(calls("tally", 10), perhaps, counted={"tally": counted})
        assert (list(checks.tally(history, LIMITS["tally"])) == []) is holds


@pytest.mark.parametrize("name", ["tally", "local_tally"])
def test_what_is_counted_after_a_loss_is_not_lost(name: str) -> None:
    before, after, kill = calls(name, 10), calls(name, 7, begin=5.0), Fault(1.0, 2.0, "kill", 1)

    def holds(counted: int, *faults: Fault) -> bool:
        history = of(before, after, faults=faults, counted={name: counted})
        return not any(one.what.startswith(name) for one in check(history, {name: LIMITS[name]}))

    assert holds(7, kill) and holds(17, kill)
    assert not holds(6, kill) and not holds(18, kill)
    assert not holds(16, kill._replace(name="clock")), "no clock is set as far as the end of the window"
    assert not holds(16, kill._replace(losses=0))


def test_whose_death_excuses_what_was_never_told() -> None:
    history = of(calls("local_tally", 5, alone=True, asked=False, process=1), counted={"local_tally": 0})
    assert len(list(checks.local_tally(history, LIMITS["local_tally"]))) == 1
    assert list(checks.local_tally(replace(history, killed={1: 9.0}), LIMITS["local_tally"])) == []
    assert len(list(checks.local_tally(replace(history, killed={2: 9.0}), LIMITS["local_tally"]))) == 1


def slots(*operations: list[Operation], faults: tuple[Fault, ...] = ()) -> list[str]:
    return [one.what for one in checks.leases(of(*operations, faults=faults), LIMITS["local_slots"])]


def test_slots_that_a_process_grants_alone_are_its_share_with_all_that_it_holds() -> None:
    name = "local_slots"
    served = calls(name, SLOTS, process=0)
    shares = [calls(name, SHARE, begin=1.0, alone=True, process=one) for one in (1, 2, 3)]
    assert slots(served, *shares) == []
    assert slots(calls(name, SHARE + 1, alone=True)) == ["local_slots: 3 slots of process 0 held at 0.0210, 2 allowed"]
    together = [Operation(0, name, 1, 1.0, 1.1 + place / 100, "ok", alone=True) for place in range(SHARE + 1)]
    assert slots(together[:SHARE]) == [] and len(slots(together)) == 1
    assert slots(calls(name, SHARE - 1), calls(name, 1, begin=1.0, alone=True)) == []
    assert len(slots(calls(name, SHARE), calls(name, 1, begin=1.0, alone=True))) == 1
    assert slots(calls(name, SHARE, end=0.9), calls(name, 1, begin=1.0, alone=True)) == []


def test_the_server_grants_no_slot_while_it_knows_that_those_granted_alone_fill_the_limit() -> None:
    """It has been told of them a while after the outage."""
    name = "local_slots"
    granted = [calls(name, SHARE, begin=1.0, alone=True, process=one) for one in (0, 1)]
    room = SLOTS - 2 * SHARE
    assert slots(*granted, calls(name, room, begin=20.0, process=2)) == []
    too_many = calls(name, room + 1, begin=20.0, process=2)
    assert len(slots(*granted, too_many)) == 1
    assert slots(*granted, too_many, faults=(Fault(19.0, 19.5, "dead"),)) == []
    assert slots(*granted, calls(name, room + 1, begin=1.0 + SETTLED / 2, process=2)) == []
    assert len(slots(*granted, calls(name, SLOTS + 1, begin=2.0, process=2))) == 1


def test_only_the_process_that_is_stopped_may_leave_leases_of_an_old_copy() -> None:
    late = copied(STALE + 0.5)

    def left(*faults: Fault, **found: object) -> int:
        return len(list(checks.stale(replace(late, faults=list(faults), **found))))  # type: ignore[arg-type]

    stop = Fault(3.0, 3.6, "stop client", process=0)
    assert left(stop) == left(stop._replace(name="silence client")) == left(Fault(3.0, 3.6, "starve")) == 0
    assert left(stop._replace(process=1)) == left(stop._replace(name="lock database", process=None)) == 1
    assert left(Fault(2.1 - RECOVERY, 2.2 - RECOVERY, "starve")) == 1, "it was over before the server came back"
    assert left(killed={0: 2.6}) == left(killed={0: 1.5}) == 0
    assert left(killed={0: 99.0}) == left(killed={1: 2.6}) == 1


def test_nobody_has_to_answer_who_was_dead() -> None:
    assert list(checks.unanswered(of([Operation(0, "log", 1, 1.0, inf)], killed={0: 1.5}))) == []
