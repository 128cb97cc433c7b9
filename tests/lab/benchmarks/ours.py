"""Our own subjects, and what they are compared with: a PING and scripts that do nothing."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from redis import Redis
from redis import asyncio as aioredis

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, rule_set
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from tests.lab.benchmarks.player import IDENTS, IN_FLIGHT, Play, in_flight, one_by_one, piped

EMPTY = "return 1"
# The first of them is what most sites have: the default algorithm, one rate.
OF_A_SITE: dict[str, dict[str, Any]] = {
    "per second": {"rate": "1000000/s"}, "per minute": {"rate": "9000000/min", "algorithm": "fixed_window"},
    "per hour": {"rate": "9000000/h", "algorithm": "gcra", "burst": 100_000},
    "per day": {"rate": "9000000/day", "resolution": 4},
    "per week": {"rate": "9000000/week", "algorithm": "fixed_window"},
    "per 10 seconds": {"rate": "1000000/10s", "algorithm": "gcra"}, "per 10 minutes": {"rate": "9000000/10min"},
    "bucket": {"rate": "9000000/h", "algorithm": "token_bucket", "burst": 100_000},
    "per 12 hours": {"rate": "9000000/12h", "algorithm": "fixed_window"},
    "meter": {"rate": "9000000/min", "algorithm": "leaky_bucket"},
}  # fmt: skip
MIXED = tuple(Rule(name, **options) for name, options in OF_A_SITE.items())
OPTIONS: dict[str, dict[str, Any]] = {
    "token_bucket, interval": {"algorithm": "token_bucket", "refill": "interval"},
    "sliding_window, 4 sub-windows": {"algorithm": "sliding_window", "resolution": 4},
}
ALGORITHMS = ("sliding_window", "fixed_window", "gcra", "sliding_log", *OPTIONS)
KEPT = ("sliding_window", "fixed_window", "gcra", "sliding_window, 4 sub-windows", "fixed_window")


def ours(url: str, rules: int) -> Play:
    return one_by_one(Limiter(MIXED[:rules], _store(url, MIXED[:rules])).acquire)


def ours_async(url: str, rules: int) -> Play:
    return in_flight(Limiter(MIXED[:rules], _store(url, MIXED[:rules])).aacquire)


def ours_piped(url: str, rules: int) -> Play:
    return piped(url, _calls(url, MIXED[:rules]))


def algorithm_piped(url: str, algorithm: str) -> Play:
    rate = "1000/min" if algorithm == "sliding_log" else "1000000/min"
    rule = Rule(algorithm, rate, **{"algorithm": algorithm, **OPTIONS.get(algorithm, {})})
    return piped(url, _calls(url, (rule,)))


def kept(url: str, *algorithms: str) -> Play:
    """Idents never seen before, for what each takes in memory; nothing expires during the run."""
    return one_by_one(Limiter(rules_for_hours(algorithms, "10/h"), _store(url)).acquire, fresh=True)


def rules_for_hours(algorithms: Iterable[str], rate: str) -> list[Rule]:
    """A rule of each algorithm, of whose counters none expires during a run."""
    named = ((name, {"algorithm": name, **OPTIONS.get(name, {})}) for name in algorithms)
    return [Rule(f"kept {number}", rate, **options) for number, (name, options) in enumerate(named)]


def in_memory(url: str) -> Play:
    return one_by_one(Limiter(MIXED[:1], MemoryStore()).acquire)


def ping(url: str) -> Play:
    client = Redis.from_url(url)
    return one_by_one(lambda _: client.ping())


def ping_piped(url: str) -> Play:
    return piped(url, [("PING",)])


def empty(url: str) -> Play:
    script = Redis.from_url(url).register_script(EMPTY)
    return one_by_one(lambda _: script())


def empty_piped(url: str, like: int) -> Play:
    """A script that does nothing, with the keys and arguments of so many of our rules."""
    sha = Redis.from_url(url).script_load(EMPTY)
    return piped(url, [("EVALSHA", sha, *(_calls(url, MIXED[:like], 1)[0][2:] if like else (0,)))])


def plain_async(url: str, rules: int) -> Play:
    """Our script, sent as anybody would: ``await client.evalsha(…)``."""
    calls = dict(zip(IDENTS, _calls(url, MIXED[:rules], IN_FLIGHT), strict=False))
    pool = aioredis.BlockingConnectionPool.from_url(url, max_connections=IN_FLIGHT)
    client = aioredis.Redis(connection_pool=pool)
    return in_flight(lambda ident: client.execute_command(*calls[ident]))


def _store(url: str, rules: Sequence[Rule] = ()) -> RedisStore:
    """Subjects with other rules have other keys, as long as usual: a value has the records of one subject alone."""
    prefix = hashlib.sha256("".join([rule.id for rule in rules]).encode()).hexdigest()[:2]
    return RedisStore(url, deadline=5, max_connections=IN_FLIGHT, prefix=prefix)


def _calls(url: str, rules: tuple[Rule, ...], idents: int = len(IDENTS)) -> list[tuple[Any, ...]]:
    """The script's call for each ident; the server knows the script from here on."""
    Limiter(rules, _store(url, rules)).acquire(IDENTS[0])
    store, parts = _store(url, rules), tuple(part for rule in rules for part in rule.parts)
    commands = (Decide(rule_set(parts).charges((ident,) * len(parts), 1)) for ident in IDENTS[:idents])
    return [("EVALSHA", *store._redis_command(command).calls[0].by_sha()[1:]) for command in commands]
