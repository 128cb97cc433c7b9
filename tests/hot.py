"""Processes that use one prepaid budget at once, each with a demand of its own: ``python -m tests.hot``.

The one argument is JSON: url, rule, demands (calls a second, one for each process), seconds. The first line printed has
the processes' ids, the last one the calls of each: how many were tried, and when each began and ended that passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from struct import Struct
from typing import Any, NamedTuple

ENTRY, COUNTS = Struct("dd"), Struct("qqq")
IDENT = "everyone"
# What took longer says little about when it was admitted.
PROMPT = 0.01


class Calls(NamedTuple):
    """What one process did; ``held`` is what it still held a second after its last call."""

    tried: int
    passed: list[tuple[float, float]]
    held: int


@contextmanager
def hot(url: str, rule: dict[str, Any], demands: list[float], seconds: float) -> Iterator[tuple[list[int], Any]]:
    """The ids of such processes as they begin, and what waits for their calls."""
    given = json.dumps({"url": url, "rule": rule, "demands": demands, "seconds": seconds})
    command = [sys.executable, "-m", "tests.hot", given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as playing:
        assert playing.stdout is not None
        pids = json.loads(playing.stdout.readline())

        def calls() -> list[Calls]:
            assert playing.stdout is not None
            return [
                Calls(tried, [(a, b) for a, b in found], held)
                for tried, found, held in json.loads(playing.stdout.readline())
            ]

        yield pids, calls


def most_in(window: float, calls: list[Calls]) -> int:
    """The most that surely passed in any such window: of calls that were over at once."""
    times = sorted(began for one in calls for began, ended in one.passed if ended - began < PROMPT)
    oldest = found = 0
    for newest, at in enumerate(times):
        while times[oldest] <= at - (window - PROMPT):
            oldest += 1
        found = max(found, newest - oldest + 1)
    return found


def _work(memory: mmap, at: int, url: str, rule: dict[str, Any], demand: float, start: float, seconds: float) -> None:
    from django_throttle import agent
    from django_throttle.core import Rule
    from django_throttle.core.commands import Charge
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    store = RedisStore(url, deadline=10.0)
    hot = Rule("hot", **rule)
    limiter, tried, passed = Limiter([hot], store), 0, 0
    time.sleep(max(0.0, start - time.monotonic()))
    while (now := time.monotonic() - start) < seconds:
        while tried < int(now * demand):
            tried += 1
            began = time.monotonic()
            if limiter.acquire(IDENT).allowed:
                ENTRY.pack_into(memory, at + COUNTS.size + passed * ENTRY.size, began, time.monotonic())
                passed += 1
            COUNTS.pack_into(memory, at, tried, passed, 0)
        time.sleep(min(0.02, 1 / demand))
    time.sleep(1.0)
    COUNTS.pack_into(memory, at, tried, passed, store.local_limits.prepaid.held(Charge(hot, IDENT, 0)))
    agent.stop()


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    from django_throttle.stores import RedisStore  # noqa: F401 - once, not in each process

    play = json.loads(sys.argv[1])
    demands, seconds = play["demands"], play["seconds"]
    room = COUNTS.size + ENTRY.size * (round(max(demands) * seconds) + 10)
    memory = mmap(-1, room * len(demands))
    start, pids = time.monotonic() + 0.3 + 0.05 * len(demands), []
    for number, demand in enumerate(demands):
        pid = os.fork()
        if pid == 0:
            try:
                _work(memory, number * room, play["url"], play["rule"], demand, start, seconds)
            finally:
                os._exit(0)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    for pid in pids:
        os.waitpid(pid, 0)
    found = []
    for number in range(len(demands)):
        tried, passed, held = COUNTS.unpack_from(memory, number * room)
        first = number * room + COUNTS.size
        found.append((tried, [ENTRY.unpack_from(memory, first + ENTRY.size * one) for one in range(passed)], held))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
