"""Other limiters and ours in turns: decisions, Redis' work, memory, and views."""

from __future__ import annotations

from collections.abc import Iterator

from tests.lab.benchmarks.costs import kept
from tests.lab.benchmarks.latency import IN_FLIGHT_CALLS, PING, VIEW_CALLS, added
from tests.lab.benchmarks.ours import KEPT
from tests.lab.benchmarks.player import Subject, compare
from tests.lab.benchmarks.table import Row

PEERS = {
    "limits": "of_limits",
    "throttled-py": "of_throttled",
    "django-ratelimit": "of_django_ratelimit",
    "DRF UserRateThrottle": "of_drf",
}
ASYNC_PEERS = {name: PEERS[name] for name in ("limits", "throttled-py")}  # the others have no async
DOORS = {"RuleThrottle": "ours", "DRF UserRateThrottle": "drf", "django-ratelimit": "ratelimit"}
DOORS["django-smart-ratelimit"] = "smart"
IDENTS = 10_000


def rows(url: str, rounds: int, share: int) -> Iterator[Row]:
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
    yield from _memory(url, IDENTS // share)


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
