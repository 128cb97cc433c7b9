"""What a decision costs Redis: processor time around a pipelined run."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.ours import ALGORITHMS
from tests.benchmarks.player import Subject, compare
from tests.benchmarks.table import Row

CALLS = 4000
SECTION = "Redis CPU, pipelined"
BARE, LIKE_1, LIKE_5 = (f"empty script, {what}" for what in ("no arguments", "arguments of 1 rule", "… of 5 rules"))
ONE, MIXED = "ours, 1 rule", "ours, 5 mixed rules"
SAME = "ours, 5 sliding windows"


def rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        Subject("PING", "ours", "ping_piped", (), CALLS),
        Subject(BARE, "ours", "empty_piped", (0,), CALLS),
        Subject(LIKE_1, "ours", "empty_piped", (1,), CALLS),
        Subject(LIKE_5, "ours", "empty_piped", (5,), CALLS),
        Subject(ONE, "ours", "ours_piped", (1,), CALLS),
        Subject(MIXED, "ours", "ours_piped", (5,), CALLS),
        Subject(SAME, "ours", "same_rules_piped", (5,), CALLS),
        *(Subject(name, "ours", "algorithm_piped", (name,), CALLS) for name in ALGORITHMS),
    ]
    results = compare(subjects, url, rounds)
    for name, result in results.items():
        yield Row(SECTION, name, result.redis, "µs", result.ratio(results[LIKE_1], "redis"), "empty, same args")
    bare, like, one, mixed = results[BARE], results[LIKE_1], results[ONE], results[MIXED]
    yield Row(SECTION, "1 rule beside an empty script", one.redis, "µs", one.ratio(like, "redis"), "same args", 3.5)
    yield Row(SECTION, "1 rule beside an empty script", one.redis, "µs", one.ratio(bare, "redis"), "no arguments", 3.5)
    for name, five in (("mixed", mixed), ("sliding window", results[SAME])):
        further = (five.redis - one.redis) / 4
        for what, base in (("same args", like), ("no arguments", bare)):
            yield Row(SECTION, f"each further rule, {name}", further, "µs", further / base.redis, what, 2.2)
