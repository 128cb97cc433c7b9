"""Where the client and Redis run: a wake-up across cores costs more than a decision, so the scheduler has no say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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
