"""Bytes that Redis keeps for an identity: ``used_memory`` over many of them, each with one call."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from tests.lab.benchmarks.ours import ALGORITHMS, KEPT
from tests.lab.benchmarks.player import Subject, company
from tests.lab.benchmarks.table import Row

# Redis' table of keys doubles at powers of two; this number and its eighth leave it equally full.
IDENTS = 20_000
ASKED = {"gcra": 165.0, "sliding_window": 195.0, "5 mixed rules": 260.0}
KINDS: dict[str, tuple[str, ...]] = {**{name: (name,) for name in ALGORITHMS}, "5 mixed rules": KEPT}


def rows(url: str, share: int) -> Iterator[Row]:
    """``share`` divides the number of identities, for a quick run."""
    idents = IDENTS // share
    for name, algorithms in KINDS.items():
        size = kept(Subject(name, "ours", "kept", algorithms), url, idents)
        yield Row(f"memory per identity, {idents:,} of them", name, size, "B", asked=ASKED.get(name))
    size = usage(Subject("one", "ours", "kept", KEPT), url)
    yield Row("MEMORY USAGE of all keys of one identity", "5 mixed rules", size, "B", asked=260.0)


def usage(subject: Subject, url: str) -> int:
    """What the keys take that one more identity adds."""
    with company([subject], url) as (player,), Redis.from_url(url) as server:
        before = set(server.keys())
        player.tell(1)
        found = sum(server.memory_usage(key) for key in set(server.keys()) - before)
        server.flushdb()
        return found


def kept(subject: Subject, url: str, idents: int) -> float:
    with company([subject], url) as (player,), Redis.from_url(url) as server:
        server.flushdb()
        before = server.info("memory")["used_memory"]
        player.tell(idents)
        found = float(server.info("memory")["used_memory"] - before) / idents
        server.flushdb()
        return found
