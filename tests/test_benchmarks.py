"""The benchmark: its processes, figures and table, at the smallest scale, so that it still runs when it is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import commits, sockets
from tests.benchmarks.player import Result, Round, Subject, compare
from tests.benchmarks.table import Row, show, write


def test_subjects_take_turns_in_processes_of_their_own(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")
    subjects = [
        Subject("ping", "ours", "ping", calls=20),
        Subject("ours", "ours", "ours", (5,), 20),
        Subject("async", "ours", "ours_async", (1,), 100),
        Subject("piped", "ours", "ours_piped", (1,), 100),
        Subject("view", "views", "view", ("ours",), 20),
        Subject("handshakes", "sockets", "handshakes", ("door",), 20),
        Subject("messages", "sockets", "messages", ("both",), 20),
    ]
    results = compare(subjects, redis_url, 2)
    assert [len(result.rounds) for result in results.values()] == [2] * 7
    assert all(one.took > 0 for result in results.values() for one in result.rounds)
    assert results["ours"].redis > results["ping"].redis


def test_silent_sockets_are_counted_and_weighed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")
    held = sockets.held(redis_url, "cap", 20, 1)
    assert held.redis > 0
    assert 0 < held.scripts < held.commands < 100


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    mine = Result([Round(2.0, 0), Round(9.0, 0), Round(30.0, 0)])
    other = Result([Round(1.0, 0), Round(3.0, 0), Round(10.0, 0)])
    assert mine.ratio(other) == 3.0
    assert mine.took == 9.0


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("s", "w", 50.0, "µs", 1.1, "PING", 1.15), "met"),
        (Row("s", "w", 50.0, "µs", 1.2, "PING", 1.15), "MISSED"),
        (Row("s", "w", 5.0, "/s", None, "", 4.0, "≥"), "met"),
        (Row("s", "w", 50.0, "µs"), ""),
        (Row("s", "w", None, "", None, "", 1.0), ""),
    ],
)
def test_a_row_says_whether_its_figure_is_met(row: Row, verdict: str, tmp_path: Path) -> None:
    assert row.verdict == verdict
    assert verdict in show([row]).splitlines()[-1]
    write([row], {"rounds": 1}, tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())["figures"][0]["verdict"] == verdict


def test_two_trees_are_compared(redis_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    commits.compare(commits.ROOT, redis_url, 2, "1 rule")
    printed = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert len(printed) == sum("1 rule" in subject.name for subject in commits.SUBJECTS)
    assert all(float(before) > 0 and float(now) > 0 and float(ratio) > 0 for *_, before, now, ratio, _ in printed)
