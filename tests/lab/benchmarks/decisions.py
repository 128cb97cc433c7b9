"""What a decision takes, what a door adds to a view, what either costs Redis, and the same of other limiters."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from redis import Redis

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.lab.benchmarks.ours import ALGORITHMS, KEPT
from tests.lab.benchmarks.player import Play, Result, Row, Subject, company, compare, redis_commands

PING = Subject("PING of redis-py", "ours", "ping")
RULES = {1: "1 rule", 5: "5 mixed rules", 10: "10 mixed rules"}
IN_FLIGHT_CALLS = 100
VIEW_CALLS = 5
# Dearer than a PING in a loop: what runs after a trip to Redis finds the processor's caches used by others.
THERE = "a PING of redis-py in its place adds"


def sync_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        PING,
        Subject("an empty script", "ours", "empty"),
        *(Subject(what, "ours", "ours", (rules,)) for rules, what in RULES.items()),
        Subject("1 rule, in memory", "ours", "in_memory"),
    ]
    results, asked = compare(subjects, url, rounds), dict(zip(RULES.values(), (0.70, 0.90, 1.10), strict=True))
    for name, result in results.items():
        ratio = result.took / results[PING.name].took
        yield Row("one decision, synchronous", name, result.took, "µs", ratio, "PING", asked.get(name))


def async_rows(url: str, rounds: int) -> Iterator[Row]:
    ways = {"Limiter.aacquire": "ours_async", "plain await evalsha": "plain_async"}
    subjects = [
        Subject(f"{way}, {RULES[rules]}", "ours", make, (rules,), IN_FLIGHT_CALLS)
        for rules in (1, 5)
        for way, make in ways.items()
    ]
    results = compare(subjects, url, rounds)
    for rules, asked in ((1, 6.0), (5, 4.0)):
        mine, plain = (results[f"{way}, {RULES[rules]}"].took for way in ways)
        section = "50 in flight on one event loop, decisions"
        yield Row(section, f"plain await evalsha, {RULES[rules]}", 1e6 / plain, "/s")
        what = f"Limiter.aacquire, {RULES[rules]}"
        yield Row(section, what, 1e6 / mine, "/s", plain / mine, "plain await evalsha", asked, "≥")


def view_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        Subject("unthrottled", "views", "view", ("none",), VIEW_CALLS),
        Subject(THERE, "views", "view", ("ping",), VIEW_CALLS),
        *(
            Subject(f"RuleThrottle adds, {RULES[rules]}", "views", "view", ("ours", rules), VIEW_CALLS)
            for rules in (1, 5)
        ),
    ]
    limits = {f"RuleThrottle adds, {RULES[1]}": 1.0, f"RuleThrottle adds, {RULES[5]}": 1.1}
    yield from added("REST framework view, header fields included", compare(subjects, url, rounds), limits)


def middleware_rows(url: str, rounds: int) -> Iterator[Row]:
    for kind, make, asked in (("sync", "through_middleware", 1.0), ("async", "through_middleware_async", 0.8)):
        subjects = [
            Subject("without", "views", make, ("none",), VIEW_CALLS),
            Subject(THERE, "views", make, ("ping",), VIEW_CALLS),
            *(Subject(f"adds, {RULES[rules]}", "views", make, ("ours", rules), VIEW_CALLS) for rules in (1, 5)),
        ]
        section = f"middleware, plain Django view, {kind}, from Django's handler on"
        yield from added(section, compare(subjects, url, rounds), {f"adds, {RULES[1]}": asked})


def added(section: str, results: dict[str, Result], asked: dict[str, float]) -> Iterator[Row]:
    """Yield what each subject takes longer than the first, in PINGs in its place, which are the second."""
    (bare_name, bare), (ping_name, ping), *others = ((name, result.took) for name, result in results.items())
    yield Row(section, bare_name, bare, "µs")
    yield Row(section, ping_name, ping - bare, "µs")
    for name, took in others:
        yield Row(section, name, took - bare, "µs", (took - bare) / (ping - bare), "PING there", asked.get(name))


BARE, LIKE = "an empty script, no arguments", "an empty script, arguments of 1 rule"
PIPED = {
    "PING": ("ping_piped",), BARE: ("empty_piped", 0), LIKE: ("empty_piped", 1), "1 rule": ("ours_piped", 1),
    "5 mixed rules": ("ours_piped", 5), **{name: ("algorithm_piped", name) for name in ALGORITHMS},
}  # fmt: skip
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


def kept(subject: Subject, url: str, idents: int) -> float:
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
    subjects = [Subject(name, "decisions", "local", given) for name, given in LOCAL.items()]
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for player in players:
            before = redis_commands(server)[1]
            took = min(player.tell(CALLS, ROUNDS) for _ in range(rounds))
            scripts, calls = redis_commands(server)[1] - before, CALLS * ROUNDS * rounds
            note, section = f"{scripts} scripts in {calls:,} calls", "Limiter.acquire without a round trip"
            yield Row(section, player.subject.name, 1 / took, "/s", asked=400_000, sense="≥", note=note)


PREPAID = "prepaid budgets"
EXACT, AHEAD, SECONDS = 1_000, 50_000, 3.0


def prepaid_rows(url: str, rounds: int) -> Iterator[Row]:
    store = RedisStore(url, deadline=5)
    exact, prepaid = (
        Limiter([Rule(f"hot {ahead}", "1000000000/min", algorithm="gcra", prepaid=ahead)], store)
        for ahead in (False, True)
    )
    for name, play in (("synchronous", _play), ("asynchronous", _play_on_loop)):
        found = [(play(exact, EXACT), play(prepaid, AHEAD)) for _ in range(rounds)]
        ratio = median(asked / local for asked, local in found)
        local = 1 / median(local for _, local in found)
        yield Row(PREPAID, name, local, "/s", ratio, "a round trip each", 20, "≥")
    slow = min(sorted(_play(prepaid, 1) for _ in range(AHEAD))[AHEAD * 99 // 100] for _ in range(rounds))
    yield Row(PREPAID, "a local decision, 99 of 100, in the quietest round", slow * 1e6, "µs", asked=10)
    with Redis.from_url(url) as server:
        before, began = redis_commands(server)[1], time.monotonic()
        while time.monotonic() - began < SECONDS:
            _play(prepaid, 100)
        yield Row(PREPAID, "commands a second", (redis_commands(server)[1] - before) / SECONDS, "/s", asked=10)


def _play(limiter: Limiter, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        limiter.acquire("everyone")
    return (time.perf_counter() - began) / calls


def _play_on_loop(limiter: Limiter, calls: int) -> float:
    async def play() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await limiter.aacquire("everyone")
        return (time.perf_counter() - began) / calls

    return asyncio.run(play())


PEERS = {
    "limits": "of_limits", "throttled-py": "of_throttled", "django-ratelimit": "of_django_ratelimit",
    "DRF UserRateThrottle": "of_drf",
}  # fmt: skip
ASYNC_PEERS = {name: PEERS[name] for name in ("limits", "throttled-py")}  # the others have no async
DOORS = {"RuleThrottle": "ours", "DRF UserRateThrottle": "drf", "django-ratelimit": "ratelimit"}
DOORS["django-smart-ratelimit"] = "smart"
OTHERS = 10_000  # identities


def other_rows(url: str, rounds: int, share: int) -> Iterator[Row]:
    results = compare([PING, *_subjects(PEERS, "ours")], url, rounds)
    for name, result in results.items():
        ratio = result.took / results[PING.name].took
        yield Row("other limiters, one decision", name, result.took, "µs", ratio, "PING")
    for name, result in results.items():
        ratio = result.redis / results["ours, 1 rule"].redis
        yield Row("Redis CPU, one by one", name, result.redis, "µs", ratio, "ours, 1 rule")
    results = compare(list(_subjects(ASYNC_PEERS, "ours_async", "_async", IN_FLIGHT_CALLS)), url, rounds)
    for name, result in results.items():
        yield Row("other limiters, 50 in flight", name, 1e6 / result.took, "/s")
    doors = {"unthrottled": "none", **{f"{name} adds": throttle for name, throttle in DOORS.items()}}
    subjects = [Subject(name, "views", "view", (throttle,), VIEW_CALLS) for name, throttle in doors.items()]
    yield from added("other throttles, a REST framework view", compare([PING, *subjects], url, rounds), {})
    yield from _memory(url, OTHERS // share)


def _memory(url: str, idents: int) -> Iterator[Row]:
    section = f"memory per identity, {idents:,} of them"
    for rules in (1, 5):
        ours = kept(Subject("ours", "ours", "kept", KEPT[:rules]), url, idents)
        yield Row(section, f"ours, {_rules(rules)}", ours, "B")
        for name, peer in PEERS.items():
            theirs = kept(Subject(name, "peers", "kept_by", (peer, rules)), url, idents)
            yield Row(section, f"{name}, {_rules(rules)}", theirs, "B", theirs / ours, "ours")


def _subjects(peers: dict[str, str], ours: str, suffix: str = "", calls: int = 5) -> Iterator[Subject]:
    for rules in (1, 5):
        yield Subject(f"ours, {_rules(rules)}", "ours", ours, (rules,), calls)
        for name, make in peers.items():
            yield Subject(f"{name}, {_rules(rules)}", "peers", make + suffix, (rules,), calls)


def _rules(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"
