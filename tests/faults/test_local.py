"""The policy ``local`` over an outage: shares add up to the limit, and what they admitted is charged afterwards."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
LIMIT, WINDOW, PROCESSES = 200, 2, 4
KEPT = ("--appendonly", "yes", "--appendfsync", "always")
SHARE = LIMIT // PROCESSES


def rule_of(window: int) -> dict[str, Any]:
    return {"rate": f"{LIMIT}/{window}s", "algorithm": "sliding_window", "resolution": 8, "strict": True}


class Admitted:
    """Calls that several processes admitted, in their order; see caller.py for what each prints."""

    def __init__(self, printed: list[str]) -> None:
        told = [json.loads(text) for text in printed]
        self.calls = sorted((at, alone) for calls, *_ in told for at, alone in calls)
        self.longest = max(longest for _, longest, _ in told)  # call
        self.missed = sum(missed for *_, missed in told)  # calls without Redis

    def most(self, window: float) -> int:
        first = most = 0
        for last, (at, _) in enumerate(self.calls):
            while self.calls[first][0] <= at - window:
                first += 1
            most = max(most, last - first + 1)
        return most


@contextmanager
def callers(
    url: str, *, seconds: float, rule: dict[str, Any], core: int | None = None, processes: int = PROCESSES
) -> Iterator[Callable[[], Admitted]]:
    """Processes that all ask from now on; yield what waits for their end."""
    command = [sys.executable, "-m", "tests.faults.caller", json.dumps([url, rule, seconds, core])]
    with ExitStack() as stack:
        started = [Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) for _ in range(processes)]
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        for process in started:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        yield lambda: Admitted([process.communicate(timeout=300)[0] for process in started])


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: None) -> Iterator[RedisServer]:
    with RedisServer(*getattr(request, "param", ())) as server:
        yield server


def around(server: RedisServer, how: str, outage: float, window: int, after: float) -> Admitted:
    """What passes of a window before an outage of so many seconds, in it and afterwards."""
    before = window * 0.75
    with callers(server.url, seconds=before + outage + after, rule=rule_of(window)) as ended:
        time.sleep(before)
        getattr(server, how)()
        time.sleep(outage)
        server.resume() if how == "pause" else server.start()
        return ended()


OUTAGES = [
    pytest.param("pause", (), id="hangs", marks=pytest.mark.row("F03")),
    pytest.param("kill", KEPT, id="restarts with its data", marks=pytest.mark.row("F23")),
    pytest.param("kill", (), id="restarts without its data", marks=pytest.mark.row("F22")),
]


# Seconds of the window, of the outage, and afterwards, for breakers to close; the last is for `make faults` alone.
LENGTHS = [(WINDOW, 2.0 * WINDOW, 3.0 * WINDOW), *([(60, 60.0, 75.0)] if "LONG_OUTAGES" in os.environ else [])]


@pytest.mark.parametrize(("window", "outage", "after"), LENGTHS)
@pytest.mark.parametrize(("how", "server"), OUTAGES, indirect=["server"])
@pytest.mark.row("B08")
def test_around_an_outage_no_window_has_more_than_limit_and_shares(
    server: RedisServer, how: str, window: int, outage: float, after: float, figure: Any
) -> None:
    admitted = around(server, how, outage, window, after)
    most = admitted.most(window)
    around_what = "window around an outage" if window == WINDOW else "minute around an outage of one"
    figure(f"passed of 200 in any {around_what}, by ``local``,", most)
    assert any(alone for _, alone in admitted.calls)
    assert most <= LIMIT + PROCESSES * SHARE


BUSY = 20  # processes that leave a nice one half a hundredth of a core
STARVED = 5.0  # seconds


@contextmanager
def busy(core: int) -> Iterator[Callable[[], None]]:
    started = [Popen(["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]) for _ in range(BUSY)]

    def stop() -> None:
        for process in started:
            process.kill()
            process.wait()

    try:
        yield stop
    finally:
        stop()


@pytest.mark.row("F53")
def test_a_process_without_a_processor_admits_the_limit(server: RedisServer, figure: Any) -> None:
    """It misses deadlines, and Redis, which is well, counts each call: the breaker opens, and closes again."""
    core, rule = min(os.sched_getaffinity(0)), {**rule_of(3600), "rate": "1000/h"}
    with busy(core) as stop, callers(server.url, seconds=STARVED, rule=rule, core=core, processes=1) as ended:
        time.sleep(STARVED)
        stop()
        admitted = ended()
    figure("longest call of a process that is starved, with a deadline of 100 ms", admitted.longest * 1000, "ms")
    figure("calls without Redis", admitted.missed)
    figure("passed of 1,000", len(admitted.calls))
    assert admitted.longest > 0.2, "else nothing was starved"
    # A call whose reply came too late is charged, and may have been refused.
    assert 900 <= len(admitted.calls) <= 1050
