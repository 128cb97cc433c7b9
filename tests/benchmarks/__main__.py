"""``make bench``: measure, print one table, and write it as JSON to the path in BENCH_JSON."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from redis import Redis

from tests.benchmarks import beat, damper, hammered, latency, memory, outage, redis_cpu, refusals, sockets
from tests.benchmarks.table import Row, circumstances, show, write
from tests.servers import RedisServer

USUAL, QUICK = 7, 3
SHARE = 8  # of the identities, in a quick run

Measure = Callable[[RedisServer, int, int], Iterable[Row]]
GROUPS: dict[str, Measure] = {
    "sync": lambda server, rounds, share: latency.sync_rows(server.url, 3 * rounds),
    "async": lambda server, rounds, share: latency.async_rows(server.url, 2 * rounds),
    "view": lambda server, rounds, share: latency.view_rows(server.url, 3 * rounds),
    "redis": lambda server, rounds, share: redis_cpu.rows(server.url, rounds),
    "memory": lambda server, rounds, share: memory.rows(server.url, share),
    "hammered": lambda server, rounds, share: hammered.rows(server.url, rounds),
    "refusals": lambda server, rounds, share: refusals.rows(server.url, rounds),
    "damper": lambda server, rounds, share: damper.rows(server.url, rounds, 60 if share == 1 else 18),
    "connections": lambda server, rounds, share: beat.rows(server.url),
    "sockets": lambda server, rounds, share: sockets.rows(server.url, rounds, 20 if share == 1 else 6),
    "outage": lambda server, rounds, share: outage.rows(server.port),
}
CRASHED = Row("open connections", "slots of a killed process", None, "", note="tests/connections/test_chaos.py")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rounds rather than {USUAL}, fewer identities")
    parser.add_argument("--only", choices=GROUPS, help="one group of figures")
    chosen = parser.parse_args()
    rounds, share = (QUICK, SHARE) if chosen.quick else (USUAL, 1)
    start = time.monotonic()
    with RedisServer() as server:
        prepare(server)
        told = circumstances(Redis.from_url(server.url).info("server"), rounds)
        print(", ".join(f"{name} {value}" for name, value in told.items()))
        rows = measure(server, [chosen.only] if chosen.only else list(GROUPS), rounds, share)
    print(f"\n{time.monotonic() - start:.0f} s in all; load now {os.getloadavg()[0]:.2f}")
    if path := os.environ.get("BENCH_JSON"):
        write(rows, told, Path(path))


def prepare(server: RedisServer) -> None:
    """Say to all processes that are started from here which Redis and which settings are theirs."""
    os.environ["REDIS_URL"] = server.url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"


def measure(server: RedisServer, groups: list[str], rounds: int, share: int) -> list[Row]:
    """All rows; each group is printed when it is known."""
    found: list[Row] = []
    for name in groups:
        rows = [*GROUPS[name](server, rounds, share), *([CRASHED] if name == "connections" else [])]
        print(show(rows), flush=True)
        found += rows
    return found


if __name__ == "__main__":
    main()
