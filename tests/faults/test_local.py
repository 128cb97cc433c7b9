"""The policy ``local`` over an outage: shares add up to the limit, and what they admitted is charged afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RedisServer, slack

ROOT = Path(__file__).parents[2]
LIMIT, WINDOW, PROCESSES = 200, 4.0, 4
RULE = {"rate": f"{LIMIT}/4s", "algorithm": "sliding_window", "resolution": 8, "strict": True}


class Admitted:
    """The calls of several processes that were admitted."""

    def __init__(self, lines: list[str]) -> None:
        self.calls = sorted((float(at), degraded == "1") for at, degraded in map(str.split, lines))

    def most(self, window: float) -> int:
        """The most of them in any span of so many seconds."""
        first = most = 0
        for last, (at, _) in enumerate(self.calls):
            while self.calls[first][0] <= at - window:
                first += 1
            most = max(most, last - first + 1)
        return most

    @property
    def degraded(self) -> int:
        return sum(degraded for _, degraded in self.calls)


class Callers:
    def __init__(self, started: list[subprocess.Popen[str]]) -> None:
        self.started = started
        self.pids = [process.pid for process in started]

    def ended(self) -> Admitted:
        """What they have admitted, once all have come to their end."""
        return Admitted([line for one in self.started for line in one.communicate(timeout=60)[0].splitlines()])


@contextmanager
def callers(
    url: str,
    *,
    expected: int,
    seconds: float,
    rule: dict[str, Any] = RULE,
    threads: int = 1,
    processes: int = PROCESSES,
) -> Iterator[Callers]:
    """Processes that all ask from now on."""
    argument = json.dumps([url, expected, rule, seconds, threads])
    command = [sys.executable, "-m", "tests.faults.caller", argument]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(processes)
        ]
        for process in started:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()

        try:
            yield Callers(started)
        finally:
            for process in started:
                process.kill()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("how", ["pause", pytest.param("kill", marks=pytest.mark.row("F22"))])
def test_around_an_outage_no_window_has_more_than_the_limit_and_a_share_of_each(
    server: RedisServer, how: str, figure: Callable[..., None]
) -> None:
    with callers(server.url, expected=0, seconds=13) as crew:
        time.sleep(2.0)
        getattr(server, how)()
        time.sleep(5.0)
        server.resume() if how == "pause" else server.start()
        admitted = crew.ended()
    most = admitted.most(WINDOW)
    figure("passed of 200 in any window around it, by ``local``,", most)
    assert admitted.degraded > 0
    assert most <= LIMIT + PROCESSES * (LIMIT // PROCESSES)


def test_processes_that_start_in_an_outage_share_the_limit_and_are_charged(server: RedisServer) -> None:
    server.kill()
    rule = {"rate": "100/min", "algorithm": "gcra", "burst": 100}
    with callers(server.url, expected=PROCESSES, seconds=6, rule=rule) as crew:
        time.sleep(2.0)
        server.start()
        admitted = crew.ended()
    print(f"{len(admitted.calls)} of 100, {admitted.degraded} by processes alone")
    # A full bucket, and what flows into it in the seconds of the outage, and of the test. Whoever comes back first may
    # use what the others have not charged yet.
    assert 100 <= admitted.degraded <= 100 + slack(5.0) * 100 / 60
    assert len(admitted.calls) <= 200 + slack(6.0) * 100 / 60 + 1


@pytest.mark.row("F53")
def test_a_process_that_gets_no_processor_admits_no_more_than_the_limit(
    server: RedisServer, figure: Callable[..., None]
) -> None:
    """Twenty threads each, stopped for a third of a second again and again while Redis is well."""
    rule = {"rate": "1000/min", "algorithm": "sliding_window", "resolution": 8, "strict": True}
    with callers(server.url, expected=2, seconds=8, rule=rule, threads=20, processes=2) as crew:
        for _ in range(12):
            for pid in crew.pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.3)
            for pid in crew.pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.2)
        admitted = crew.ended()
    figure("passed of 1,000", len(admitted.calls))
    assert len(admitted.calls) <= 1050
