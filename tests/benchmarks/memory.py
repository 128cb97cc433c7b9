"""Bytes that Redis keeps for an identity: ``used_memory`` over many of them, each with one call."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from tests.benchmarks.latency import PEERS
from tests.benchmarks.ours import ALGORITHMS, KEPT
from tests.benchmarks.player import Subject, company
from tests.benchmarks.table import Row

ASKED = {"gcra": 165.0, "sliding_window": 195.0}
# Redis' table of keys doubles at powers of two; these numbers and their eighths leave it equally full.
OURS, ALL = 20_000, 10_000


def rows(url: str, share: int) -> Iterator[Row]:
    """``share`` divides the number of identities, for a quick run."""
    many, some = OURS // share, ALL // share
    for name in ALGORITHMS:
        subject = Subject(name, "ours", "kept", (name,))
        yield Row(f"memory per identity, {many:,} of them", name, kept(subject, url, many), "B", asked=ASKED.get(name))
    section = f"memory per identity, {some:,} of them"
    for rules in (1, 5):
        ours = kept(Subject("ours", "ours", "kept", KEPT[:rules]), url, some)
        what = f"{rules} rule{'s' * (rules > 1)}"
        yield Row(section, f"ours, {what}", ours, "B")
        for name, peer in PEERS.items():
            theirs = kept(Subject(name, "peers", "kept_by", (peer, rules)), url, some)
            yield Row(section, f"{name}, {what}", theirs, "B", theirs / ours, "ours")


def kept(subject: Subject, url: str, idents: int) -> float:
    with company([subject], url) as (player,), Redis.from_url(url) as server:
        server.flushdb()
        before = server.info("memory")["used_memory"]
        player.tell(idents)
        found = float(server.info("memory")["used_memory"] - before) / idents
        server.flushdb()
        return found
