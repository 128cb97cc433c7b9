"""A damper: what four processes let through of a flood, for a minute."""

import time
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any

from redis import Redis

from tests.lab.benchmarks.player import SPAWN, redis_commands
from tests.lab.benchmarks.table import Row

PROCESSES = 4
LIMIT = 4000
TIMES = 5  # the limit: 20,000 attempts a second
LESS, RELEASE = 0.8, 26  # of the limit, for so many seconds in the end
SETTLED = 12  # seconds until then
BIN = 0.1
TICK = 0.005
READY: Any = None  # all processes, in each of them


def rows(url: str, seconds: int) -> Iterator[Row]:
    """Four processes from rest to five times the limit, then to 0.8 of it; asked is twice what a simulation gets."""
    phases = [(seconds, LIMIT * TIMES / PROCESSES), (RELEASE, LIMIT * LESS / PROCESSES)]
    with Redis.from_url(url) as server, SPAWN.Pool(PROCESSES, _be_ready, (SPAWN.Barrier(PROCESSES),)) as pool:
        before = redis_commands(server)[1]
        refused, passed = zip(*pool.starmap(attempts, [(url, phases)] * PROCESSES, chunksize=1), strict=True)
        calls = redis_commands(server)[1] - before
    rates = [sum(each) / (LIMIT * BIN) for each in zip(*passed, strict=True)]
    above = [second for second in range(12) if _mean(rates, second, 1) > 1.1]
    steady = [_mean(rates, at, 6) for at in range(SETTLED, seconds - 5, 6)]
    late = [at for at, each in enumerate(zip(*refused, strict=True)) if any(each)]
    what = f"4 processes, {LIMIT * TIMES:,}/s, {seconds} s"
    off = abs(_mean(rates, SETTLED, seconds - SETTLED) - 1)
    yield Row("damper", f"{what}: off the limit when settled", off * 100, "%", asked=6)
    yield Row("damper", f"{what}: deviation of 6-second rates", pstdev(steady) * 100, "%", asked=10)
    yield Row("damper", f"{what}: under 1.1 × the limit after", float(max(above, default=-1) + 1), "s", asked=12)
    all_passes = max(0.0, (max(late, default=0) + 1) * BIN - seconds)
    yield Row("damper", f"{what}: all passes again after", all_passes, "s", asked=24)
    note = "2 a second, and beats"
    yield Row("damper", f"{what}: script calls a second", calls / (seconds + RELEASE), "/s", note=note)


def _mean(rates: Sequence[float], begin: float, seconds: float) -> float:
    return fmean(rates[round(begin / BIN) : round((begin + seconds) / BIN)])


def _be_ready(barrier: Any) -> None:
    global READY
    READY = barrier


def attempts(url: str, phases: Sequence[tuple[float, float]]) -> tuple[list[int], list[int]]:
    """How many attempts were refused, and passed, in each tenth of a second; each phase has so many a second."""
    import django

    django.setup()
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    limiter = Limiter([Rule("account", f"{LIMIT}/s", algorithm="damper")], RedisStore(url, deadline=5.0))
    limiter.peek("user:1")  # whatever takes time the first time
    bins = round(sum(seconds for seconds, _ in phases) / BIN)
    found = [0] * (bins + 1), [0] * (bins + 1)
    READY.wait()
    start, begin = time.monotonic(), 0.0
    for seconds, rate in phases:
        done = 0
        while (elapsed := time.monotonic() - start - begin) < seconds:
            due, at = int(elapsed * rate), int((begin + elapsed) / BIN)
            for _ in range(due - done):
                found[limiter.acquire("user:1").allowed][at] += 1
            done = due
            time.sleep(TICK)
        begin += seconds
    return found[0][:bins], found[1][:bins]
