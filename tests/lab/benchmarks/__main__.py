"""``make bench``: measure, print one table, and write it as JSON to the path in BENCH_JSON."""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from tests.lab.benchmarks import damper, decisions, growth, scaling, sockets
from tests.lab.benchmarks.placement import CORES, FREE, ONE, TWO, Place, is_first, placed
from tests.lab.benchmarks.table import Row, as_json, circumstances, show, write
from tests.servers import RedisServer

USUAL, QUICK = 20, 6
SHARE = 8  # of the identities, in a quick run


class Scale(NamedTuple):
    """Rounds of each subject, what the number of identities is divided by, and how many flood a process."""

    rounds: int
    share: int
    flood: int


class Group(NamedTuple):
    """What measures some figures, and where its client and Redis run: in each of these places, in turn."""

    measure: Callable[[RedisServer, Scale], Iterable[Row]]
    places: tuple[Place, ...] = (ONE,)


GROUPS: dict[str, Group] = {
    "sync": Group(lambda server, scale: decisions.sync_rows(server.url, scale.rounds), (ONE, TWO)),
    "view": Group(lambda server, scale: decisions.view_rows(server.url, scale.rounds), (ONE, TWO)),
    "middleware": Group(lambda server, scale: decisions.middleware_rows(server.url, scale.rounds), (ONE, TWO)),
    "async": Group(lambda server, scale: decisions.async_rows(server.url, scale.rounds), (ONE, TWO)),
    "redis": Group(lambda server, scale: decisions.redis_rows(server.url, scale.rounds)),
    "memory": Group(lambda server, scale: decisions.memory_rows(server.url, scale.share)),
    "refusals": Group(lambda server, scale: decisions.refusal_rows(server.url, scale.rounds)),
    "prepaid": Group(lambda server, scale: decisions.prepaid_rows(server.url, scale.rounds)),
    "sockets": Group(lambda server, scale: sockets.rows(server.url, scale.rounds)),
    "others": Group(lambda server, scale: decisions.other_rows(server.url, scale.rounds, scale.share)),
    "damper": Group(lambda server, scale: damper.rows(server.url, 60 if scale.share == 1 else 18), (FREE,)),
    "silent": Group(lambda server, scale: sockets.silent_rows(server.url, 20 if scale.share == 1 else 6), (FREE,)),
    "identities": Group(lambda server, scale: growth.identity_rows(server.url, scale.rounds, scale.share)),
    "rulebook": Group(lambda server, scale: growth.rulebook_rows(server.url, scale.rounds)),
    "flood": Group(lambda server, scale: growth.flood_rows(server.url, scale.flood // scale.share)),
    "crowd": Group(lambda server, scale: scaling.socket_rows(server.url, scale.share), (FREE,)),
    "masters": Group(lambda server, scale: scaling.cluster_rows(scale.share)),
}
GROWTH = ("identities", "rulebook", "flood", "crowd", "masters")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rounds rather than {USUAL}, fewer identities")
    parser.add_argument(
        "--only",
        choices=["growth", *GROUPS],
        help="one group of figures; growth: all with many identities, rules, overrides, sockets and masters",
    )
    parser.add_argument("--flood", type=int, default=1_000_000, help="identities that flood a process")
    chosen = parser.parse_args()
    scale = Scale(*((QUICK, SHARE) if chosen.quick else (USUAL, 1)), chosen.flood)
    start = time.monotonic()
    with RedisServer() as server:
        prepare(server)
        told = circumstances(Redis.from_url(server.url).info("server"), scale.rounds)
        print(", ".join(f"{name} {value}" for name, value in told.items()))
        rows = measure(server, list(runs(chosen.only)), scale)
    print(f"\n{time.monotonic() - start:.0f} s in all; load now {os.getloadavg()[0]:.2f}")
    if path := os.environ.get("BENCH_JSON"):
        write(rows, told, Path(path))
    if chosen.only in {"growth", *GROWTH} and not chosen.quick:
        publish(rows, told)


def publish(rows: list[Row], told: dict[str, Any]) -> None:
    """Keep these figures for docs/explanation/scale.rst, and write its table and its picture."""
    from docs import scale  # its matplotlib is for no subject

    for name in GROWTH:
        if mine := [row for row in rows if row.group == name]:
            scale.save(name, told, list(map(as_json, mine)))
    scale.main()


def prepare(server: RedisServer) -> None:
    """Say to all processes that are started from here which Redis and which settings are theirs."""
    os.environ["REDIS_URL"] = server.url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.lab.benchmarks.settings"


def runs(only: str | None) -> Iterator[tuple[str, Place]]:
    for name in GROWTH if only == "growth" else (only,) if only else GROUPS:
        for place in GROUPS[name].places:
            if place is TWO and len(CORES) < 2:
                print(f"\n{name}, {TWO.name}: left out, as there is one core here")
            else:
                yield name, place


def measure(server: RedisServer, chosen: list[tuple[str, Place]], scale: Scale) -> list[Row]:
    found: list[Row] = []
    for name, place in chosen:
        with placed(place, server.pid):
            where = place.name + ", real-time" * is_first()
            rows = list(GROUPS[name].measure(server, scale))
        rows = [row._replace(section=f"{row.section} ({where})", group=name) for row in rows]
        if place is TWO:
            rows = [row._replace(asked=None) for row in rows]
        print(show(rows), flush=True)
        found += rows
    return found


if __name__ == "__main__":
    main()
