"""Decisions one at a time and fifty in flight, and what a door adds to a view."""

from __future__ import annotations

from collections.abc import Iterator

from tests.lab.benchmarks.player import Result, Subject, compare
from tests.lab.benchmarks.table import Row

PING = Subject("PING of redis-py", "ours", "ping")
RULES = {1: "1 rule", 5: "5 mixed rules", 10: "10 mixed rules"}
IN_FLIGHT_CALLS = 100
VIEW_CALLS = 5
# More than one PING: what runs after a trip to Redis finds the processor's caches used by others.
THERE = "a PING of redis-py in its place adds"


def sync_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        PING,
        Subject("an empty script", "ours", "empty"),
        *(Subject(what, "ours", "ours", (rules,)) for rules, what in RULES.items()),
        Subject("1 rule, in memory", "ours", "in_memory"),
    ]
    results, asked = compare(subjects, url, rounds), dict(zip(RULES.values(), (0.80, 1.00, 1.25), strict=True))
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
    for rules, asked in ((1, 5.0), (5, 4.0)):
        mine, plain = (results[f"{way}, {RULES[rules]}"].took for way in ways)
        section = "50 in flight on one event loop, decisions"
        yield Row(section, f"plain await evalsha, {RULES[rules]}", 1e6 / plain, "/s")
        what = f"Limiter.aacquire, {RULES[rules]}"
        yield Row(section, what, 1e6 / mine, "/s", plain / mine, "plain await evalsha", asked, "≥")


def view_rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [
        PING,
        Subject("unthrottled", "views", "view", ("none",), VIEW_CALLS),
        Subject(THERE, "views", "view", ("ping",), VIEW_CALLS),
        *(
            Subject(f"RuleThrottle adds, {RULES[rules]}", "views", "view", ("ours", rules), VIEW_CALLS)
            for rules in (1, 5)
        ),
    ]
    asked = {f"RuleThrottle adds, {RULES[1]}": 1.6, f"RuleThrottle adds, {RULES[5]}": 1.8}
    yield from added("REST framework view, header fields included", compare(subjects, url, rounds), asked)


def middleware_rows(url: str, rounds: int) -> Iterator[Row]:
    for kind, make, asked in (("sync", "through_middleware", 1.4), ("async", "through_middleware_async", 1.6)):
        subjects = [
            PING,
            Subject("without", "views", make, ("none",), VIEW_CALLS),
            Subject(THERE, "views", make, ("ping",), VIEW_CALLS),
            *(Subject(f"adds, {RULES[rules]}", "views", make, ("ours", rules), VIEW_CALLS) for rules in (1, 5)),
        ]
        section = f"middleware, plain Django view, {kind}, from Django's handler on"
        yield from added(section, compare(subjects, url, rounds), {f"adds, {RULES[1]}": asked})


def added(section: str, results: dict[str, Result], asked: dict[str, float]) -> Iterator[Row]:
    """What each subject after the first two takes longer than the second, in PINGs, which are the first."""
    ping, (name, bare), *more = ((name, result.took) for name, result in results.items())
    yield Row(section, name, bare, "µs")
    for name, took in more:
        yield Row(section, name, took - bare, "µs", (took - bare) / ping[1], "PING", asked.get(name))
