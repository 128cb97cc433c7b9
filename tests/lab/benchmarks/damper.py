"""A damper: what four processes let through of a flood, for a minute."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from tests.lab.benchmarks.damper_load import Load, Phase, play
from tests.lab.benchmarks.player import redis_commands
from tests.lab.benchmarks.table import Row

SECTION = "damper"
PROCESSES = 4
LIMIT = 4000
TIMES = 5  # the limit: 20,000 attempts a second
LESS = 0.8
RELEASE = 26


def rows(url: str, seconds: int) -> Iterator[Row]:
    """Four processes from rest to five times the limit, then to 0.8 of it; asked is twice what a simulation gets."""
    part = LIMIT / PROCESSES
    with Redis.from_url(url) as server:
        before = redis_commands(server)[1]
        phases = [Phase(seconds, part * TIMES), Phase(RELEASE, part * LESS)]
        load = play(url, LIMIT, [1] * PROCESSES, phases)
        calls = redis_commands(server)[1] - before
    begin = 12.0
    what = f"4 processes, {LIMIT * TIMES:,}/s, {seconds} s"
    mean = load.rate(begin, seconds)
    yield Row(SECTION, f"{what}: off the limit when settled", abs(mean - 1) * 100, "%", asked=6)
    yield Row(SECTION, f"{what}: deviation of 6-second rates", load.deviation(begin, seconds, 6) * 100, "%", asked=10)
    yield Row(SECTION, f"{what}: most unfair share", load.unfairness(begin, seconds) * 100, "%", asked=10)
    yield Row(SECTION, f"{what}: under 1.1 × the limit after", _reaction(load), "s", asked=12)
    yield Row(SECTION, f"{what}: all passes again after", load.last_refusal(seconds), "s", asked=24)
    note = "2 a second, and beats"
    yield Row(SECTION, f"{what}: script calls a second", calls / (seconds + RELEASE), "/s", note=note)


def _reaction(load: Load) -> float:
    """The end of the last second of the first twelve that was above 1.1 times the limit."""
    above = [at for at, rate in enumerate(load.rates(0, 12, 1)) if rate > 1.1]
    return float(max(above, default=-1) + 1)
