"""A damper: what a decision costs in the process, and what four processes let through of a flood, for a minute."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from django_throttle.core import Rule
from django_throttle.core.commands import charges_of
from django_throttle.core.decide import decide_charges
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from tests.benchmarks.player import Play, Subject, company
from tests.benchmarks.table import Row
from tests.damper.load import Load, Phase, play

CALLS = 100_000
SECTION = "damper"
PROCESSES = 4
LIMIT = 4000
TIMES = 5  # the limit: 20,000 attempts a second
LESS = 0.8
RELEASE = 26


def whole(url: str, rate: str) -> Play:
    """``Limiter.acquire``, from the ident to the decision."""
    limiter = _limiter(url, rate)

    def play(calls: int) -> None:
        for _ in range(calls):
            limiter.acquire("user:1")

    return play


def alone(url: str, rate: str) -> Play:
    """The decision itself: the flow, on charges that are known."""
    store = _limiter(url, rate).store
    charges = charges_of(Rule("bench", rate, algorithm="damper"), "user:1", 1)

    def play(calls: int) -> None:
        for _ in range(calls):
            run(decide_charges(charges, denials=store.denials, local_limits=store.local_limits), store)

    return play


def rows(url: str, rounds: int, seconds: int) -> Iterator[Row]:
    yield from _decisions(url, rounds)
    yield from _flood(url, seconds)


def _decisions(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        Subject(f"{what}, {outcome}", "damper", make, (rate,))
        for what, make in (("a decision", "alone"), ("Limiter.acquire", "whole"))
        for outcome, rate in (("passes", "90000000/s"), ("refused", "1/s"))
    ]
    with company(subjects, url) as players, Redis.from_url(url) as server:
        before = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        for player in players:
            took = sorted(player.tell(CALLS) for _ in range(rounds))[rounds // 2]
            asked = 2.0 if "decision" in player.subject.name else None
            yield Row(SECTION, player.subject.name, took * 1e6, "µs", asked=asked)
            yield Row(SECTION, f"{player.subject.name}: a second and core", 1 / took, "/s", asked=400_000, sense="≥")
        calls = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) - before
        note = "reports and beats"
        yield Row(SECTION, f"script calls in {4 * rounds * CALLS:,} decisions", calls, "", note=note)


def _flood(url: str, seconds: int) -> Iterator[Row]:
    """Four processes from rest to five times the limit, then to 0.8 of it; asked is twice what a simulation gets."""
    part = LIMIT / PROCESSES
    with Redis.from_url(url) as server:
        before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
        phases = [Phase(seconds, part * TIMES), Phase(RELEASE, part * LESS)]
        load = play(url, LIMIT, [1] * PROCESSES, phases)
        calls = server.info("commandstats")["cmdstat_evalsha"]["calls"] - before
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


def _limiter(url: str, rate: str) -> Limiter:
    return Limiter((Rule("bench", rate, algorithm="damper"),), RedisStore(url, deadline=5))
