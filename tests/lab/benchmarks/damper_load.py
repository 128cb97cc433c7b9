"""Real processes that attempt at a rate under one damper rule, and the calls of theirs that passed.

A worker is started as ``python -m tests.lab.benchmarks.damper_load '{"url": …}'``. It says that it is ready, reads the
moment of the monotonic clock at which to begin, and prints as JSON how much it attempted and how much passed in each
tenth of a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
BIN = 0.1
TICK = 0.005
PATIENCE = 60


class Phase(NamedTuple):
    """So many attempts a second of each process, for so many seconds."""

    seconds: float
    rate: float


class Load(NamedTuple):
    """What all processes attempted and what passed, by tenths of a second, in multiples of the limit."""

    attempted: list[list[float]]
    passed: list[list[float]]

    def rate(self, begin: float, end: float) -> float:
        """What passed between two moments."""
        return sum(fmean(self.cut(bins, begin, end)) for bins in self.passed)

    def rates(self, begin: float, end: float, window: float) -> list[float]:
        steps = int((end - begin) / window)
        return [self.rate(begin + step * window, begin + (step + 1) * window) for step in range(steps)]

    def deviation(self, begin: float, end: float, window: float) -> float:
        return pstdev(self.rates(begin, end, window))

    def unfairness(self, begin: float, end: float) -> float:
        """By how much a process's share of what passed differs from its share of what was attempted, at most."""
        shares = [self._shares(kind, begin, end) for kind in (self.attempted, self.passed)]
        return max(abs(passed / attempted - 1) for attempted, passed in zip(*shares, strict=True))

    def last_refusal(self, begin: float) -> float:
        """Seconds from ``begin`` until everything passes."""
        first = round(begin / BIN)
        refused = [sum(one) for one in zip(*self.attempted, strict=True)]
        passed = [sum(one) for one in zip(*self.passed, strict=True)]
        late = [at for at in range(first, len(refused)) if refused[at] - passed[at] > 1e-9]
        return (max(late, default=first - 1) + 1 - first) * BIN

    @staticmethod
    def cut(bins: Sequence[float], begin: float, end: float) -> Sequence[float]:
        return bins[round(begin / BIN) : round(end / BIN)]

    def _shares(self, all_bins: list[list[float]], begin: float, end: float) -> list[float]:
        sums = [sum(self.cut(bins, begin, end)) for bins in all_bins]
        return [one / sum(sums) for one in sums]


def play(url: str, limit: int, rates: Sequence[float], phases: Sequence[Phase], **settings: Any) -> Load:
    """One process for each of ``rates``, which says how its attempts compare with those of the others."""
    workers = []
    for share in rates:
        given = [(phase.seconds, phase.rate * share) for phase in phases]
        what = {"url": url, "limit": limit, "phases": given, "settings": settings}
        command = [sys.executable, "-m", "tests.lab.benchmarks.damper_load", json.dumps(what)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        workers.append(subprocess.Popen(command, **pipes, cwd=ROOT, text=True))
    try:
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * len(workers)
        begin = time.monotonic() + 0.1
        for worker in workers:
            worker.stdin.write(f"{begin}\n")
            worker.stdin.flush()
        longest = sum(phase.seconds for phase in phases) + PATIENCE
        told = [json.loads(worker.communicate(timeout=longest)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    unit = limit * BIN
    return Load(*([[number / unit for number in one[kind]] for one in told] for kind in ("attempted", "passed")))


def main(url: str, limit: int, phases: Sequence[Sequence[float]], settings: dict[str, Any]) -> None:
    import django
    from django.conf import settings as configured

    configured.configure(DJANGO_THROTTLE={"REDIS": url, **settings}, SECRET_KEY="load", USE_TZ=True)
    django.setup()
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    store = RedisStore(url, deadline=5.0)
    limiter = Limiter([Rule("account", f"{limit}/s", algorithm="damper")], store)
    limiter.peek("user:1")  # whatever takes time the first time
    bins = round(sum(seconds for seconds, _ in phases) / BIN)
    attempted, passed = [0] * (bins + 1), [0] * (bins + 1)
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    time.sleep(max(0.0, start - time.monotonic()))
    begin = 0.0
    for seconds, rate in phases:
        done = 0
        while (elapsed := time.monotonic() - start - begin) < seconds:
            due = int(elapsed * rate)
            at = int((begin + elapsed) / BIN)
            passed[at] += sum(limiter.acquire("user:1").allowed for _ in range(due - done))
            attempted[at] += due - done
            done = due
            time.sleep(TICK)
        begin += seconds
    print(json.dumps({"attempted": attempted[:bins], "passed": passed[:bins]}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
