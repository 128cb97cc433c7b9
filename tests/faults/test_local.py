"""The policy ``local`` over an outage: shares add up to the limit, and what they admitted is charged afterwards."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.conf import settings

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.http.servers import Server
from tests.servers import RedisServer, slack, wait_until

ROOT = Path(__file__).parents[2]
LIMIT, WINDOW, PROCESSES = 200, 2, 4
KEPT = ("--appendonly", "yes", "--appendfsync", "always")
SHARE = LIMIT // PROCESSES


def rule_of(window: int) -> dict[str, Any]:
    """A hard limit, so that no more than it and the shares may pass in any window."""
    return {"rate": f"{LIMIT}/{window}s", "algorithm": "sliding_window", "resolution": 8, "strict": True}


class Admitted:
    """Calls that several processes admitted, in their order; see caller.py for what each prints."""

    def __init__(self, printed: list[str]) -> None:
        told = [json.loads(text) for text in printed]
        self.calls = sorted((at, alone) for calls, *_ in told for at, alone in calls)
        self.longest = max(longest for _, longest, _ in told)  # call
        self.missed = sum(missed for *_, missed in told)  # calls without Redis

    def most(self, window: float) -> int:
        """The most of them in any span of so many seconds."""
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


class Clients:
    """As many as there are processes ask a site for one budget all the time; what they got, by now."""

    def __init__(self, site: Server) -> None:
        self.site, self.done = site, threading.Event()
        self.processes: list[str] = []  # which admitted each call
        self.refused: list[int] = []  # by which status

    def ask(self) -> None:
        while not self.done.is_set():
            try:
                with urlopen(f"http://127.0.0.1:{self.site.port}/middleware/quick/one", timeout=30) as answer:
                    self.processes.append(answer.read().decode())
            except HTTPError as error:
                error.close()
                self.refused.append(error.code)

    def __enter__(self) -> Clients:
        self.pool = ThreadPoolExecutor(PROCESSES)
        self.asking = [self.pool.submit(self.ask) for _ in range(PROCESSES)]
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.pool.shutdown()
        for one in self.asking:
            one.result()


@pytest.mark.row("F01")
def test_gunicorn_in_an_outage_admits_the_limit_and_shares(server: RedisServer, figure: Any) -> None:
    """All of it within one window."""
    rule = {"rate": "100/h", "algorithm": "sliding_log", "key": "tests.http.served.who", "scopes": ["middleware"]}
    server.kill()
    with Server("gunicorn-4", server, {"api": rule}, PROCESSES=PROCESSES) as site, Clients(site) as clients:
        wait_until(lambda: len(clients.processes) >= 100 and len(clients.refused) >= 400, timeout=slack(30))
        in_outage = list(clients.processes)
        server.start()
        with server.client() as redis:
            wait_until(lambda: redis.zcard("dt:{p}:live") == PROCESSES, timeout=slack(15))
        refused = len(clients.refused)
        wait_until(lambda: len(clients.refused) >= refused + 400, timeout=slack(30))
    store = RedisStore(server.url, secret=settings.SECRET_KEY, deadline=5.0)
    decision = Limiter([Rule.from_options("api", rule)], store).peek("tests.http.served.who:one")
    figure("passed of 100 in an outage, ``gunicorn -w 4`` started in it", len(in_outage))
    figure("and in the same window once Redis was back,", len(clients.processes) - len(in_outage))
    assert set(clients.refused) == {429}
    assert sorted(Counter(in_outage).values()) == [25] * PROCESSES
    assert len(clients.processes) <= 100 + PROCESSES * 25
    assert (decision.degraded, decision.remaining) == (False, 0), "Redis has been charged for all of it"


BUSY = 20  # processes that leave a nice one half a hundredth of a core
STARVED = 5.0  # seconds


@contextmanager
def busy(core: int) -> Iterator[Callable[[], None]]:
    """Processes that take all that they get of one core, until they are told to stop."""
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
