"""What a decision costs Redis in time and memory, and what is decided without it."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.ours import ALGORITHMS, KEPT
from tests.lab.benchmarks.player import Play, Subject, company, compare, redis_commands
from tests.lab.benchmarks.table import Row

BARE, LIKE = "an empty script, no arguments", "an empty script, arguments of 1 rule"
PIPED = {
    "PING": ("ping_piped",),
    BARE: ("empty_piped", 0),
    LIKE: ("empty_piped", 1),
    "1 rule": ("ours_piped", 1),
    "5 mixed rules": ("ours_piped", 5),
    **{name: ("algorithm_piped", name) for name in ALGORITHMS},
}
CPU_ASKED = {"1 rule": 3.3, "5 mixed rules": 6.0}
# Redis' table of keys doubles at powers of two; this number and its eighth leave it equally full.
IDENTS = 20_000
BYTES_ASKED = {"gcra": 165.0, "sliding_window": 195.0, "5 mixed rules": 260.0}
KINDS: dict[str, tuple[str, ...]] = {**{name: (name,) for name in ALGORITHMS}, "5 mixed rules": KEPT}
LOCAL = {
    "a refusal that is remembered": ("1/day", "sliding_window"),
    "a damper: passes": ("90000000/s", "damper"),
    "a damper: refused": ("1/s", "damper"),
}
CALLS, ROUNDS = 2_000, 20


def redis_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject(name, "ours", make, tuple(given), 200) for name, (make, *given) in PIPED.items()]
    results = compare(subjects, url, rounds)
    for name, result in results.items():
        ratio, note = result.redis / results[LIKE].redis, f"{result.redis / results[BARE].redis:.2f} without arguments"
        asked = CPU_ASKED.get(name)
        yield Row("Redis CPU, pipelined", name, result.redis, "µs", ratio, "empty script", asked, note=note)


def memory_rows(url: str, share: int) -> Iterator[Row]:
    """``used_memory`` over many identities, each with one call; ``share`` divides their number, for a quick run."""
    idents = IDENTS // share
    for name, algorithms in KINDS.items():
        size = kept(Subject(name, "ours", "kept", algorithms), url, idents)
        yield Row(f"memory per identity, {idents:,} of them", name, size, "B", asked=BYTES_ASKED.get(name))
    with company([Subject("one", "ours", "kept", KEPT)], url) as (player,), Redis.from_url(url) as server:
        before = set(server.keys())
        player.tell(1)
        size = sum(server.memory_usage(key) for key in set(server.keys()) - before)
        server.flushdb()
    yield Row("MEMORY USAGE of all keys of one identity", "5 mixed rules", size, "B", asked=260.0)


def kept(subject: Subject, url: str, idents: int) -> float:
    """Bytes that Redis keeps for each of so many identities."""
    with company([subject], url) as (player,), Redis.from_url(url) as server:
        server.flushdb()
        before = server.info("memory")["used_memory"]
        player.tell(idents)
        found = float(server.info("memory")["used_memory"] - before) / idents
        server.flushdb()
        return found


def local(url: str, rate: str, algorithm: str) -> Play:
    """One ident, whose first two calls are made beforehand: a rate of one is then used up."""
    limiter = Limiter((Rule("bench", rate, algorithm=algorithm),), RedisStore(url, deadline=5))

    def play(calls: int) -> None:
        for _ in range(calls):
            limiter.acquire("user:1")

    play(2)
    return play


def refusal_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject(name, "costs", "local", given) for name, given in LOCAL.items()]
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for player in players:
            before = redis_commands(server)[1]
            took = min(player.tell(CALLS, ROUNDS) for _ in range(rounds))
            scripts, calls = redis_commands(server)[1] - before, CALLS * ROUNDS * rounds
            note, section = f"{scripts} scripts in {calls:,} calls", "Limiter.acquire without a round trip"
            yield Row(section, player.subject.name, 1 / took, "/s", asked=400_000, sense="≥", note=note)
