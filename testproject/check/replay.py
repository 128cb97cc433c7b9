"""Ten thousand requests of a real web server, replayed on their own timestamps under every algorithm."""

from __future__ import annotations

import gzip
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from testproject.check.table import Row

LOG = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "access.log.gz"
LINE = re.compile(r"(\S+) \S+ \S+ \[([^]]+)\]")
RATE = "60/min"
LIMIT, WINDOW = 60, 60
Request = tuple[float, str]

# How each is called, its options, the most that it admits in any window, and the span of seconds before a refusal
# in which it has admitted the whole limit: weighted windows look back at one sub-window more than a window.
ALGORITHMS: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    ("fixed_window", {"algorithm": "fixed_window"}, 2 * LIMIT, WINDOW),
    ("sliding_window", {"algorithm": "sliding_window"}, 2 * LIMIT - 1, 2 * WINDOW),
    ("sliding_window, 6 steps", {"algorithm": "sliding_window", "resolution": 6}, 2 * LIMIT - 1, 70),
    ("sliding_window, 6 steps, strict", {"algorithm": "sliding_window", "resolution": 6, "strict": True}, LIMIT, 70),
    ("sliding_log", {"algorithm": "sliding_log"}, LIMIT, WINDOW),
    ("gcra", {"algorithm": "gcra"}, 2 * LIMIT - 1, WINDOW),
    ("token_bucket", {"algorithm": "token_bucket"}, 2 * LIMIT - 1, WINDOW),
    ("leaky_bucket", {"algorithm": "leaky_bucket"}, 2 * LIMIT - 1, WINDOW),
)


def replay(log: Path = LOG) -> Iterator[Row]:
    """One row for each algorithm: how many it refuses, whom most, how long it took."""
    if not log.exists():
        yield Row(f"replay, {RATE} per address", "a real access log", f"no {log.name} here", None)
        return
    requests = read(log)
    for name, options, most, span in ALGORITHMS:
        yield _row(name, Rule(name, RATE, key="ip", **options), requests, most, span)


def read(log: Path) -> list[Request]:
    """(seconds, address) of each request, by time: servers write a line when they finish, not when they start."""
    with gzip.open(log, "rt", encoding="utf-8", errors="replace") as lines:
        found = [match.groups() for line in lines if (match := LINE.match(line))]
    return sorted((datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z").timestamp(), address) for address, at in found)


def _row(name: str, rule: Rule, requests: Sequence[Request], most: int, span: int) -> Row:
    started = time.perf_counter()
    allowed = decide(rule, requests)
    took = time.perf_counter() - started
    refused = Counter(address for (_, address), passed in zip(requests, allowed, strict=True) if not passed)
    busiest = busiest_window([request for request, passed in zip(requests, allowed, strict=True) if passed])
    expected = f"≤ {most} in any minute, refused only after {LIMIT} in {span} s"
    ok = busiest <= most and not needless(requests, allowed, span)
    if rule.algorithm in COUNTED:
        counted = COUNTED[rule.algorithm](requests)
        expected, ok = f"{counted} refused, by plain counting", ok and refused.total() == counted
    top = ", ".join(f"{address} {count}" for address, count in refused.most_common(3))
    measured = f"{refused.total()} of {len(requests):,} refused, ≤ {busiest} a minute, {took:.2f} s"
    return Row(f"replay, {RATE} per address: {name}", expected, f"{measured}: {top}" if top else measured, ok)


def decide(rule: Rule, requests: Sequence[Request]) -> list[bool]:
    """Whether each request passes, when the store's clock shows the log's own times."""
    now = 0.0
    limiter = Limiter([rule], MemoryStore(clock=lambda: now))
    allowed = []
    for now, address in requests:  # noqa: B007 (the clock reads it)
        allowed.append(limiter.acquire(f"ip:{address}").allowed)
    return allowed


def beyond_each_minute(requests: Sequence[Request]) -> int:
    """What a fixed window refuses, counted without any limiter."""
    counts = Counter((address, at // WINDOW) for at, address in requests)
    return sum(max(0, count - LIMIT) for count in counts.values())


def beyond_each_window(requests: Sequence[Request]) -> int:
    """What an exact log refuses, counted without any limiter: only what was admitted counts."""
    admitted: dict[str, list[float]] = defaultdict(list)
    refused = 0
    for at, address in requests:
        if sum(before > at - WINDOW for before in admitted[address][-LIMIT:]) < LIMIT:
            admitted[address].append(at)
        else:
            refused += 1
    return refused


def beyond_each_bucket(requests: Sequence[Request]) -> int:
    """What a bucket refuses, counted without any limiter: it fills by one a call and drains by one a second."""
    level: dict[str, float] = defaultdict(float)
    seen: dict[str, float] = {}
    refused = 0
    for at, address in requests:
        level[address] = max(0.0, level[address] - (at - seen.get(address, at)) * LIMIT / WINDOW)
        seen[address] = at
        if level[address] + 1 <= LIMIT:
            level[address] += 1
        else:
            refused += 1
    return refused


COUNTED = {
    "fixed_window": beyond_each_minute,
    "sliding_log": beyond_each_window,
    **dict.fromkeys(("gcra", "token_bucket", "leaky_bucket"), beyond_each_bucket),
}


def needless(requests: Sequence[Request], allowed: Sequence[bool], span: float) -> int:
    """How many were refused though their address had less than the limit admitted in the span before."""
    admitted: dict[str, list[float]] = defaultdict(list)
    found = 0
    for (at, address), passed in zip(requests, allowed, strict=True):
        if passed:
            admitted[address].append(at)
        else:
            found += sum(before > at - span for before in admitted[address]) < LIMIT
    return found


def busiest_window(requests: Sequence[Request]) -> int:
    """The most that one address had admitted in any window."""
    times: dict[str, list[float]] = defaultdict(list)
    for at, address in requests:
        times[address].append(at)
    return max((_busiest(ats) for ats in times.values()), default=0)


def _busiest(ats: Sequence[float]) -> int:
    most = first = 0
    for last, at in enumerate(ats):
        while ats[first] <= at - WINDOW:
            first += 1
        most = max(most, last - first + 1)
    return most
