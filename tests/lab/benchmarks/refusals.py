"""What is decided without a round trip, by ``Limiter.acquire``: remembered refusals, and dampers."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.player import Play, Subject, company, redis_commands
from tests.lab.benchmarks.table import Row

CALLS, ROUNDS = 2_000, 20
SECTION = "Limiter.acquire without a round trip"


def local(url: str, rate: str, algorithm: str) -> Play:
    """One ident, whose first two calls are made beforehand: a rate of one is then used up."""
    limiter = Limiter((Rule("bench", rate, algorithm=algorithm),), RedisStore(url, deadline=5))
    for _ in range(2):
        limiter.acquire("user:1")

    def play(calls: int) -> None:
        for _ in range(calls):
            limiter.acquire("user:1")

    return play


def rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        Subject("a refusal that is remembered", "refusals", "local", ("1/day", "sliding_window")),
        Subject("a damper: passes", "refusals", "local", ("90000000/s", "damper")),
        Subject("a damper: refused", "refusals", "local", ("1/s", "damper")),
    ]
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for player in players:
            before = redis_commands(server)[1]
            took = min(player.tell(CALLS, ROUNDS) for _ in range(rounds))
            scripts, calls = redis_commands(server)[1] - before, CALLS * ROUNDS * rounds
            note = f"{took * 1e6:.2f} µs; {scripts} scripts in {calls:,} calls"
            yield Row(SECTION, player.subject.name, 1 / took, "/s", asked=400_000, sense="≥", note=note)
