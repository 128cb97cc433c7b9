"""What a decision costs Redis: processor time around a pipelined run."""

from __future__ import annotations

from collections.abc import Iterator

from tests.lab.benchmarks.ours import ALGORITHMS
from tests.lab.benchmarks.player import Subject, compare
from tests.lab.benchmarks.table import Row

CALLS = 200
SECTION = "Redis CPU, pipelined"
BARE, LIKE = "an empty script, no arguments", "an empty script, arguments of 1 rule"
ASKED = {"1 rule": 3.3, "5 mixed rules": 6.0}


def rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        Subject("PING", "ours", "ping_piped", (), CALLS),
        Subject(BARE, "ours", "empty_piped", (0,), CALLS),
        Subject(LIKE, "ours", "empty_piped", (1,), CALLS),
        Subject("1 rule", "ours", "ours_piped", (1,), CALLS),
        Subject("5 mixed rules", "ours", "ours_piped", (5,), CALLS),
        *(Subject(name, "ours", "algorithm_piped", (name,), CALLS) for name in ALGORITHMS),
    ]
    results = compare(subjects, url, rounds)
    for name, result in results.items():
        ratio, note = result.redis / results[LIKE].redis, f"{result.redis / results[BARE].redis:.2f} without arguments"
        yield Row(SECTION, name, result.redis, "µs", ratio, "empty script", ASKED.get(name), note=note)
