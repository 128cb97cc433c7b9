"""The benchmark: its processes, figures and table, at the smallest scale, so that it still runs when it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from tests.benchmarks import commits, growth, scaling, sockets
from tests.benchmarks.__main__ import GROWTH, runs
from tests.benchmarks.memory import usage
from tests.benchmarks.placement import CORES, FREE, ONE, TWO, Place, at_large, placed
from tests.benchmarks.player import Subject, company, compare
from tests.benchmarks.table import Row, show, write
from tests.servers import RedisServer

needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this test needs two cores that processes can be kept to")


@pytest.fixture
def url(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Redis of the subjects, whose processes have the benchmark's settings."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")
    return redis_url


def test_subjects_take_turns_in_processes_of_their_own(url: str) -> None:
    subjects = [
        Subject("ping", "ours", "ping", calls=20),
        Subject("ours", "ours", "ours", (10,), 20),
        Subject("async", "ours", "ours_async", (1,), 100),
        Subject("plain", "ours", "plain_async", (5,), 100),
        Subject("piped", "ours", "ours_piped", (1,), 100),
        Subject("empty", "ours", "empty_piped", (1,), 100),
        Subject("view", "views", "view", ("ours", 5), 20),
        Subject("middleware", "views", "through_middleware", ("ours", 1), 20),
        Subject("on a loop", "views", "through_middleware_async", ("ours", 1), 20),
        Subject("overridden", "growth", "overridden", (4,), 5),
        Subject("handshakes", "sockets", "handshakes", ("door",), 20),
        Subject("messages", "sockets", "messages", ("both",), 20),
        Subject("refused", "refusals", "local", ("1/day", "gcra"), 20),
    ]
    results = compare(subjects, url, 2)
    assert list(results) == [subject.name for subject in subjects]
    assert all(result.took > 0 for result in results.values())
    assert results["ours"].redis > results["ping"].redis
    assert results["piped"].redis > results["empty"].redis


def test_our_script_decides_for_whoever_sends_it(url: str) -> None:
    """What is compared with ours, and what Redis' work is measured by, are decisions."""
    subject = Subject("piped", "ours", "ours_piped", (5,))
    with company([subject], url) as (player,), Redis.from_url(url) as server:
        server.flushdb()
        player.tell(100)
        assert server.dbsize() >= 100


def test_the_keys_of_an_identity_are_weighed(url: str) -> None:
    one, five = (usage(Subject("kept", "ours", "kept", ("gcra",) * rules), url) for rules in (1, 5))
    assert 50 < one < five < 1000


@needs_two_cores
@pytest.mark.parametrize("place", [ONE, TWO])
def test_client_and_redis_keep_to_their_cores(place: Place, redis_server: RedisServer, url: str) -> None:
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with placed(place, redis_server.pid):
        with company([Subject("ping", "ours", "ping")], url) as (player,):
            assert player.pid
            assert os.sched_getaffinity(player.pid) == place.client
            assert os.sched_getaffinity(redis_server.pid) == place.server
        with at_large():
            assert os.sched_getaffinity(0) == CORES
        assert os.sched_getaffinity(0) == place.client
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
    assert os.sched_getaffinity(redis_server.pid) == CORES


def test_what_grows_is_counted_and_weighed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FEW", 20)
    sizes = {row.what: row for row in growth.identity_rows(url, 1, growth.MANY // 200)}
    assert 100 < (sizes["200 identities: memory of each in Redis"].value or 0) < 5000
    assert (sizes["200 identities: a decision"].ratio or 0) > 0
    grown = list(growth.flood_rows(url, 100))
    assert [row.value is not None and row.value >= 0 for row in grown] == [True] * 5


def test_silent_sockets_are_counted_and_weighed(url: str) -> None:
    held = sockets.held(url, "cap", 20, 1)
    assert held.redis > 0
    assert 0 < held.scripts < held.commands < 100


def test_sockets_of_several_processes_are_held(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "PROCESSES", 2)
    with Redis.from_url(url) as server, scaling.crowd(5) as holders:
        assert all(holder.opened() >= 0 for holder in holders)
        assert server.dbsize() >= 10
        assert all(taken > 0 for taken in scaling.beaten(server, holders[0]))


def test_masters_of_a_cluster_share_the_work() -> None:
    shared = scaling.of_masters(3, 300)
    assert min(shared) > 0
    assert shared.fullest < 2


def test_one_core_is_enough() -> None:
    """Then what takes two is left out, and said to be."""
    code = "from tests.benchmarks.__main__ import runs; print([place.name for _, place in runs('sync')])"
    taskset = ["taskset", "-c", str(min(CORES))]
    told = subprocess.run([*taskset, sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "client and Redis on two cores: left out, as there is one core here" in told
    assert told.endswith("['client and Redis on one core']\n")


def test_figures_can_be_measured_alone() -> None:
    assert {place for _, place in runs("cost")} == {ONE}
    assert set(runs("latency")) <= {(name, place) for name, place in runs(None) if place != FREE}
    assert list(runs("growth")) == [(name, FREE if name == "crowd" else ONE) for name in GROWTH]
    assert list(runs("silent")) == [("silent", FREE)]


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
