"""The soak's verdict: what may grow, by how much, and that every process has heard of the last edit."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.campaign.limits import rate_of
from tests.campaign.plan import PROCESSES
from tests.campaign.soak import ALLOWED, LINES, WARM, Turn, limit_of, verdict

OF_PROCESSES = ("memory", "threads", "files")
TURNS = WARM + 3
LAST = TURNS - WARM  # turns after the one that is compared with the last


def turns() -> list[Turn]:
    """Turns in which nothing grows."""
    server = {name: 7 for name in ALLOWED if name not in OF_PROCESSES}
    process = dict.fromkeys((*OF_PROCESSES, "lines"), 5)
    return [
        Turn(dict(server), [{**process, "rule": rate_of(limit_of(number))} for _ in range(PROCESSES)])
        for number in range(TURNS)
    ]


def grown(name: str, by: int, process: int | None = None, turn: int = -1) -> list[Turn]:
    found = deepcopy(turns())
    where: dict[str, Any] = found[turn].server if process is None else found[turn].processes[process]
    where[name] += by
    return found


def test_what_has_not_grown_holds() -> None:
    assert verdict(turns()) == 0
    assert {*turns()[0].server, *OF_PROCESSES} == set(ALLOWED)


@pytest.mark.parametrize("name", [name for name in ALLOWED if name not in OF_PROCESSES])
def test_the_server_has_as_much_more_as_is_allowed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(grown(name, ALLOWED[name])) == 0
    assert verdict(grown(name, ALLOWED[name] + 1)) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("grew")]
    assert line.split()[-4:] == ["7", str(7 + ALLOWED[name] + 1), f"+{ALLOWED[name]}", "grew"] and name in line


@pytest.mark.parametrize("process", range(PROCESSES - 1))
@pytest.mark.parametrize("name", [*OF_PROCESSES, "lines"])
def test_each_process_that_lives_has_as_much_more_as_is_allowed(name: str, process: int) -> None:
    """Its log may have so many lines for each turn."""
    allowed = LINES * LAST if name == "lines" else ALLOWED[name]
    assert verdict(grown(name, allowed, process)) == 0
    assert verdict(grown(name, allowed + 1, process)) == 1


@pytest.mark.parametrize("name", [*OF_PROCESSES, "lines"])
def test_the_process_that_is_killed_again_and_again_is_compared_with_nothing(name: str) -> None:
    assert verdict(grown(name, 1_000_000, PROCESSES - 1)) == 0


def test_what_was_there_before_all_was_warm_is_no_measure() -> None:
    assert verdict(grown("keys", -7, turn=WARM - 2)) == 0
    assert verdict(grown("keys", -ALLOWED["keys"] - 1, turn=WARM - 1)) == 1


@pytest.mark.parametrize("process", range(PROCESSES))
@pytest.mark.parametrize("turn", [0, WARM, TURNS - 1])
def test_no_turn_ends_with_a_process_that_has_not_heard_of_the_last_edit(process: int, turn: int) -> None:
    found = turns()
    found[turn].processes[process]["rule"] = rate_of(limit_of(turn + 1))
    assert verdict(found) == 1
    found[turn].processes[process]["rule"] = str(None)
    assert verdict(found) == 1
