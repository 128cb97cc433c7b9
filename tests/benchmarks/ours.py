"""Our own subjects, and what they are compared with: a PING and scripts that do nothing."""

from __future__ import annotations

from typing import Any

from redis import asyncio as aioredis

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, charge
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.commands import DecideCommand
from django_throttle.stores.transport import Call
from tests.benchmarks.play import IDENTS, IN_FLIGHT, in_flight, one_by_one, piped
from tests.benchmarks.player import Play

EMPTY = "return 1"
MIXED = (
    Rule("per second", "1000000/s"),
    Rule("per minute", "9000000/min", algorithm="fixed_window"),
    Rule("per hour", "9000000/h", algorithm="gcra", burst=100_000),
    Rule("per day", "9000000/day", resolution=4),
    Rule("per week", "9000000/week", algorithm="fixed_window"),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "token_bucket, interval": {"algorithm": "token_bucket", "refill": "interval"},
    "sliding_window, 4 sub-windows": {"algorithm": "sliding_window", "resolution": 4},
}
ALGORITHMS = ("sliding_window", "fixed_window", "gcra", "sliding_log", *OPTIONS)
KEPT = ("sliding_window", "fixed_window", "gcra", "sliding_window, 4 sub-windows", "fixed_window")


def ours(url: str, rules: int) -> Play:
    return one_by_one(Limiter(MIXED[:rules], _store(url)).acquire)


def ours_async(url: str, rules: int) -> Play:
    return in_flight(Limiter(MIXED[:rules], _store(url)).aacquire)


def ours_piped(url: str, rules: int) -> Play:
    return piped(url, [call.by_sha() for call in _calls(url, MIXED[:rules])])


def algorithm_piped(url: str, algorithm: str) -> Play:
    rate = "1000/min" if algorithm == "sliding_log" else "1000000/min"
    rule = Rule(algorithm, rate, **{"algorithm": algorithm, **OPTIONS.get(algorithm, {})})
    return piped(url, [call.by_sha() for call in _calls(url, (rule,))])


def same_rules_piped(url: str, rules: int) -> Play:
    """So many rules of the usual kind, to see what each further one costs."""
    kind = tuple(Rule(f"rule {number}", f"{1_000_000 + number}/s") for number in range(rules))
    return piped(url, [call.by_sha() for call in _calls(url, kind)])


def kept(url: str, *algorithms: str) -> Play:
    """Idents never seen before, for what each takes in memory; nothing expires during the run."""
    rules = [
        Rule(f"kept {number}", "10/h", **{"algorithm": kind, **OPTIONS.get(kind, {})})
        for number, kind in enumerate(algorithms)
    ]
    return one_by_one(Limiter(rules, _store(url)).acquire, fresh=True)


def in_memory(url: str) -> Play:
    return one_by_one(Limiter(MIXED[:1], MemoryStore()).acquire)


def ping(url: str) -> Play:
    client = _store(url).transport.client
    return one_by_one(lambda _: client.ping())


def ping_piped(url: str) -> Play:
    return piped(url, [("PING",)])


def ping_async(url: str) -> Play:
    client = _async_client(url)
    return in_flight(lambda _: client.ping())


def empty(url: str, like: int) -> Play:
    """A script that does nothing, with the keys and arguments of so many of our rules."""
    client = _store(url).transport.client
    (_, _, *rest), sha = _like(url, like), client.script_load(EMPTY)
    return one_by_one(lambda _: client.evalsha(sha, *rest))


def empty_piped(url: str, like: int) -> Play:
    sha = _store(url).transport.client.script_load(EMPTY)
    return piped(url, [("EVALSHA", sha, *_like(url, like)[2:])])


def empty_async(url: str, like: int) -> Play:
    sha = _store(url).transport.client.script_load(EMPTY)
    client, rest = _async_client(url), _like(url, like)[2:]
    return in_flight(lambda _: client.evalsha(sha, *rest))


def plain_async(url: str, rules: int) -> Play:
    """Our script, sent as anybody would: ``await client.evalsha(…)``."""
    calls = {ident: call.by_sha()[1:] for ident, call in zip(IDENTS, _calls(url, MIXED[:rules]), strict=True)}
    client = _async_client(url)
    return in_flight(lambda ident: client.evalsha(*calls[ident]))


def _store(url: str) -> RedisStore:
    return RedisStore(url, deadline=5, max_connections=IN_FLIGHT)


def _async_client(url: str) -> Any:
    return aioredis.Redis(connection_pool=aioredis.BlockingConnectionPool.from_url(url, max_connections=IN_FLIGHT))


def _calls(url: str, rules: tuple[Rule, ...]) -> list[Call]:
    """The script call for each ident, after Redis has learnt the script."""
    store = _store(url)
    Limiter(rules, store).acquire(IDENTS[0])
    commands = [Decide(tuple(charge(rule, ident, 1) for rule in rules)) for ident in IDENTS]
    return [DecideCommand(store, command).calls[0] for command in commands]


def _like(url: str, rules: int) -> tuple[Any, ...]:
    return _calls(url, MIXED[:rules])[0].by_sha() if rules else ("EVALSHA", "", 0)
