"""``make bench``: measure, print one table, and write it as JSON to the path in BENCH_JSON."""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from tests.lab.benchmarks import decisions, growth, scaling, sockets
from tests.lab.benchmarks.player import Row, as_json, circumstances, show, write
from tests.servers import RedisServer

# A wake-up across cores costs more than a decision, so the scheduler has no say.
CAN_PIN = hasattr(os, "sched_setaffinity")
CORES = frozenset(os.sched_getaffinity(0)) if CAN_PIN else frozenset[int]()


class Place(NamedTuple):
    """The cores of the client's processes, and of Redis, and whether both go before all else that runs there."""

    name: str
    client: frozenset[int]
    server: frozenset[int]
    is_first: bool = True


FREE = Place("placed by the scheduler", CORES, CORES, is_first=False)
ONE = TWO = FREE  # where a system cannot pin
if CAN_PIN:
    _client, _server = frozenset({min(CORES)}), frozenset({max(CORES)})
    ONE = Place("client and Redis on one core", _server, _server)
    TWO = Place("client and Redis on two cores", _client, _server)

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
    "damper": Group(lambda server, scale: scaling.damper_rows(server.url, 60 if scale.share == 1 else 18), (FREE,)),
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


@contextmanager
def placed(place: Place, server: int) -> Iterator[None]:
    """Keep this process, what it starts, and Redis to their cores for a while."""
    try:
        _put(os.getpid(), place.client, first=place.is_first)
        _put(server, place.server, first=place.is_first)
        yield
    finally:
        for pid in (os.getpid(), server):
            _put(pid, CORES)


def is_first() -> bool:
    return CAN_PIN and os.sched_getscheduler(0) == os.SCHED_RR


def _put(pid: int, cores: frozenset[int], *, first: bool = False) -> None:
    """Keep all threads of a process, and those that they start, to these cores; real-time where that is allowed."""
    if not CAN_PIN:
        return
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)
            with suppress(PermissionError):
                policy = os.SCHED_RR if first else os.SCHED_OTHER
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(int(first)))


if __name__ == "__main__":
    main()
