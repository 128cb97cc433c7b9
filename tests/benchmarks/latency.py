"""Decisions one at a time and fifty in flight, a view with and without a throttle, and Redis' work for each."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.player import Result, Subject, compare
from tests.benchmarks.table import Row

PING = "PING, same client"
PEERS = {
    "limits": "of_limits",
    "throttled-py": "of_throttled",
    "django-ratelimit": "of_django_ratelimit",
    "DRF UserRateThrottle": "of_drf",
}
ASYNC_PEERS = {name: PEERS[name] for name in ("limits", "throttled-py")}  # the others have no async
ASKED = {"ours, 1 rule": 1.15, "ours, 5 mixed rules": 1.40}
ASYNC_CALLS = 2000
ASYNC = "async, 50 in flight on one loop"


def sync_rows(url: str, rounds: int) -> Iterator[Row]:
    results = compare(
        [
            Subject(PING, "ours", "ping"),
            Subject("empty script, no arguments", "ours", "empty", (0,)),
            Subject("empty script, arguments of 1 rule", "ours", "empty", (1,)),
            Subject("empty script, arguments of 5 rules", "ours", "empty", (5,)),
            Subject("ours, 1 rule", "ours", "ours", (1,)),
            Subject("ours, 5 mixed rules", "ours", "ours", (5,)),
            Subject("ours, 1 rule, in memory", "ours", "in_memory"),
            *_peers(PEERS, 200),
        ],
        url,
        rounds,
    )
    yield from _beside_ping("sync, one decision at a time", results, ASKED)
    for name, result in results.items():
        if result.redis >= 0.1:
            ratio = result.ratio(results["ours, 1 rule"], "redis")
            yield Row("Redis CPU, one decision at a time", name, result.redis, "µs", ratio, "ours, 1 rule")


def async_rows(url: str, rounds: int) -> Iterator[Row]:
    results = compare(
        [
            Subject(PING, "ours", "ping_async", calls=ASYNC_CALLS),
            Subject("empty script, arguments of 1 rule", "ours", "empty_async", (1,), ASYNC_CALLS),
            Subject("plain await evalsha, 1 rule", "ours", "plain_async", (1,), ASYNC_CALLS),
            Subject("plain await evalsha, 5 mixed rules", "ours", "plain_async", (5,), ASYNC_CALLS),
            Subject("ours, 1 rule", "ours", "ours_async", (1,), ASYNC_CALLS),
            Subject("ours, 5 mixed rules", "ours", "ours_async", (5,), ASYNC_CALLS),
            *_peers(ASYNC_PEERS, 500, "_async"),
        ],
        url,
        rounds,
    )
    yield from _beside_ping(ASYNC, results, {})
    for rules, asked in (("1 rule", 4.0), ("5 mixed rules", None)):
        mine, plain = results[f"ours, {rules}"], results[f"plain await evalsha, {rules}"]
        name = f"ours, {rules}: decisions/s"
        ratio, quiet = plain.ratio(mine), plain.quiet_ratio(mine)
        yield Row(ASYNC, name, 1e6 / mine.took, "/s", ratio, "plain await evalsha", asked, "≥", quiet=quiet)


OTHER_DOORS = {"DRF UserRateThrottle": "drf", "django-ratelimit": "ratelimit", "django-smart-ratelimit": "smart"}


def view_rows(url: str, rounds: int) -> Iterator[Row]:
    results = compare(
        [
            Subject(PING, "ours", "ping"),
            Subject("unthrottled", "views", "view", ("none",)),
            Subject("RuleThrottle", "views", "view", ("ours",)),
            *[Subject(name, "views", "view", (throttle,)) for name, throttle in OTHER_DOORS.items()],
        ],
        url,
        rounds,
    )
    section, bare, ours, ping = "REST framework view", results["unthrottled"], results["RuleThrottle"], results[PING]
    yield Row(section, "unthrottled", bare.took, "µs")
    added = ours.beyond(bare)
    yield Row(section, "RuleThrottle adds", added.took, "µs", added.ratio(ping), "PING", 1.6)
    for name in OTHER_DOORS:
        theirs = results[name].beyond(bare)
        yield Row(section, f"{name} adds", theirs.took, "µs", theirs.ratio(ping), "PING")
        yield Row(section, f"RuleThrottle beside {name}", None, "", added.ratio(theirs), name, 1.0)


def _peers(peers: dict[str, str], calls: int, suffix: str = "") -> Iterator[Subject]:
    for name, make in peers.items():
        for rules in (1, 5):
            yield Subject(f"{name}, {_rules(rules)}", "peers", make + suffix, (rules,), calls)


def _rules(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"


def _beside_ping(section: str, results: dict[str, Result], asked: dict[str, float]) -> Iterator[Row]:
    for name, result in results.items():
        ratio, quiet = result.ratio(results[PING]), result.quiet_ratio(results[PING])
        yield Row(section, name, result.took, "µs", ratio, "PING", asked.get(name), quiet=quiet)
