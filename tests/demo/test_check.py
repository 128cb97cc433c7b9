"""make demo-check itself: its verdicts can be trusted. The steps at a live site are its own business."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from django_throttle.core import Rule, options
from testproject.check import replay as replaying
from testproject.check.form import read_form
from testproject.check.replay import (
    ALGORITHMS,
    Request,
    beyond_each_bucket,
    beyond_each_window,
    busiest_window,
    decide,
    needless,
    read,
    replay,
)
from testproject.check.table import Row, Table

FORM = """
<form id="other"><input name="no" value="1"></form>
<form id="it">
  <input type="hidden" name="token" value="a&amp;b"><input name="rate" value="5/s"><input name="empty">
  <input type="checkbox" name="on" checked><input type="checkbox" name="off">
  <input type="checkbox" name="many" value="x" checked><input type="checkbox" name="many" value="y" checked>
  <select name="one"><option value="1">1</option><option value="2" selected>2</option></select>
  <textarea name="text">some &lt;b&gt; text</textarea><input type="submit" name="_save" value="Save">
</form>
"""


def log(folder: Path, *lines: tuple[str, str]) -> Path:
    path = folder / "access.log.gz"
    with gzip.open(path, "wt") as out:
        for address, at in lines:
            out.write(f'{address} - - [17/May/2015:{at} +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n')
    return path


def test_a_form_is_sent_back_as_a_browser_would() -> None:
    assert read_form(FORM, "it") == {
        "token": ["a&b"],
        "rate": ["5/s"],
        "empty": [""],
        "on": ["on"],
        "many": ["x", "y"],
        "one": ["2"],
        "text": ["some <b> text"],
    }


@pytest.mark.parametrize(
    ("verdicts", "passed"), [((True, True), True), ((True, False), False), ((True, None), True), ((), True)]
)
def test_one_step_that_is_off_is_enough(verdicts: tuple[bool | None, ...], passed: bool) -> None:
    table = Table()
    table.add(Row("step", "this", "that", verdict) for verdict in verdicts)
    assert table.passed is passed


def test_a_table_says_what_is_off() -> None:
    table = Table()
    table.add([Row("a long step", "this", "that", False), Row("other", "this", "absent", None)])
    lines = str(table).splitlines()
    assert lines[0].split() == ["step", "expected", "measured"]
    assert lines[2].endswith("NOT OK")
    assert lines[3].endswith("skipped")


def test_a_log_is_read_in_the_order_of_its_times(tmp_path: Path) -> None:
    path = log(tmp_path, ("192.0.2.1", "10:05:43"), ("192.0.2.2", "10:05:03"), ("192.0.2.1", "10:05:04"))
    assert [address for _, address in read(path)] == ["192.0.2.2", "192.0.2.1", "192.0.2.1"]


def test_every_algorithm_replays_a_flood(tmp_path: Path) -> None:
    flood = [("192.0.2.1", "10:05:03")] * 70 + [("192.0.2.2", "10:05:03")] * 60
    rows = list(replay(log(tmp_path, *flood)))
    assert len(rows) == len(ALGORITHMS)
    assert all(row.ok for row in rows)
    assert all("10 of 130 refused" in row.measured and "192.0.2.1 10" in row.measured for row in rows)


def test_all_algorithms_are_replayed() -> None:
    replayed = {given["algorithm"] for _, given, *_ in ALGORITHMS}
    assert replayed == set(options.ALGORITHMS) - {"concurrency", "damper"}


BROKEN: dict[str, Callable[[Rule, Sequence[Request]], list[bool]]] = {
    "refuses everything": lambda rule, requests: [False] * len(requests),
    "allows everything": lambda rule, requests: [True] * len(requests),
    "one in a hundred": lambda rule, requests: [
        passed and bool(number % 100) for number, passed in enumerate(decide(rule, requests))
    ],
    "one less than the limit": lambda rule, requests: decide(Rule("less", "59/min", algorithm="gcra"), requests),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_limiter_that_is_off_is_found_under_every_algorithm(
    broken: Callable[[Rule, Sequence[Request]], list[bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = [("192.0.2.1", "10:05:03")] * 130 + [("192.0.2.2", "10:05:03")] * 60
    monkeypatch.setattr(replaying, "decide", broken)
    assert [row.step for row in replay(log(tmp_path, *flood)) if row.ok] == []


def test_a_log_is_counted_without_a_limiter() -> None:
    requests = [(0.0, "a")] * 61 + [(59.0, "a"), (60.0, "a"), (60.0, "b")]
    assert beyond_each_window(requests) == 2
    assert beyond_each_bucket([(0.0, "a")] * 61 + [(1.0, "a"), (1.0, "a"), (60.5, "a"), (1.0, "b")]) == 2


def test_a_refusal_needs_a_limit_s_worth_before_it() -> None:
    requests = [(0.0, "a")] * 60 + [(59.0, "a"), (60.0, "a"), (59.0, "b")]
    allowed = [True] * 60 + [False] * 3
    assert needless(requests, allowed, 60) == 2
    assert needless(requests, allowed, 61) == 1


def test_without_a_log_the_replay_is_skipped(tmp_path: Path) -> None:
    (row,) = replay(tmp_path / "access.log.gz")
    assert row.ok is None
    assert "access.log.gz" in row.measured


def test_the_logs_own_times_drive_the_clock() -> None:
    rule = Rule("slow", "1/min", algorithm="gcra", key="ip")
    assert decide(rule, [(0, "a"), (59, "a"), (60, "a"), (60, "b")]) == [True, False, True, True]


def test_the_busiest_window_is_counted_for_each_address() -> None:
    assert busiest_window([(0, "a"), (59, "a"), (60, "a"), (60, "b")]) == 2
