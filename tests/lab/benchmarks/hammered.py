"""The sliding log and the sliding counter under a client at many times its limit of 1,000 a minute."""

from __future__ import annotations

from collections.abc import Iterator

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.denials import NoDenials
from tests.lab.benchmarks.memory import kept
from tests.lab.benchmarks.play import IDENTS, one_by_one
from tests.lab.benchmarks.player import Play, Subject, compare
from tests.lab.benchmarks.table import Row

LIMIT = 1000
SECTION = "a client at many times 1,000/min"
KINDS = {
    "sliding log": {"algorithm": "sliding_log"},
    "sliding counter": {"algorithm": "sliding_window"},
    "sliding counter, 4 sub-windows": {"algorithm": "sliding_window", "resolution": 4},
}
CLIENTS = 20
WAYS = {"hammered": "refused", "near": "granted on the way there"}


def hammered(url: str, kind: str) -> Play:
    """Every client has used up its limit before it is measured; refusals are not remembered here."""
    limiter = _limiter(url, kind)
    for ident in IDENTS:
        limiter.acquire(ident, LIMIT)
    return one_by_one(limiter.acquire)


def near(url: str, kind: str) -> Play:
    """Clients that come up to their limit and are granted, call by call; each is new after 1,000."""
    limiter, said = _limiter(url, kind), [0]

    def call(_: str) -> None:
        limiter.acquire(f"near:{kind}:{said[0] // LIMIT}")
        said[0] += 1

    return one_by_one(call)


def filled(url: str, kind: str) -> Play:
    """Clients never seen before, each of whom uses up the limit, call by call."""
    limiter = _limiter(url, kind)
    return one_by_one(lambda ident: [limiter.acquire(ident) for _ in range(LIMIT)], fresh=True)


def rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject(f"{kind}, {way}", "hammered", way, (kind,)) for way in WAYS for kind in KINDS]
    results = compare(subjects, url, rounds)
    for way, told in WAYS.items():
        base = results[f"sliding counter, {way}"]
        for kind in KINDS:
            result = results[f"{kind}, {way}"]
            ratio = result.redis / base.redis
            yield Row(SECTION, f"{kind}: Redis CPU, {told}", result.redis, "µs", ratio, "sliding counter")
    sizes = {kind: kept(Subject(kind, "hammered", "filled", (kind,)), url, CLIENTS) for kind in KINDS}
    for kind, size in sizes.items():
        asked = 10.0 if kind == "sliding log" else None
        yield Row(SECTION, f"{kind}: memory", size, "B", size / sizes["sliding counter"], "sliding counter", asked, "≥")


def _limiter(url: str, kind: str) -> Limiter:
    store = RedisStore(url, deadline=5)
    store.denials = NoDenials()
    return Limiter((Rule(kind, f"{LIMIT}/min", **KINDS[kind]),), store)
