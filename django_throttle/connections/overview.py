"""The connections of all processes at a glance: each lists its own when it is asked, and here they are put together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.connections.host import held_by
from django_throttle.connections.ledger import Ledger
from django_throttle.connections.reports import MOST, MOST_IDENTS, Reporter, about, report_key
from django_throttle.core.orders import REPORT, Order
from django_throttle.sockets.live import live
from django_throttle.stores import MemoryStore, RedisStore

FRESH_SECONDS: Final = 1.0  # who looks more often sees the same, and costs nothing
HASTE_SECONDS: Final = 0.3  # while some process has not been heard
MOST_PROCESSES: Final = 200
MOST_SOCKETS: Final = 2000  # that all processes together list
MOST_LOOKS: Final = 8  # searches that are remembered


class Process(NamedTuple):
    """A process that lives; ``open`` is how many sockets of the search it has, None when it has not said so yet."""

    uid: str
    host: str
    pid: int
    held: int
    open: int | None


class Ident(NamedTuple):
    """Whoever has sockets open: as it is shown and as an order names it, how many, in how many processes."""

    shown: str
    tag: str
    open: int
    processes: int


class Connection(NamedTuple):
    """One open socket; times are seconds, numbers are frames."""

    uid: str
    pid: int
    id: str
    idents: tuple[str, ...]
    address: str
    scope: str
    path: str
    age: float
    silent: float
    received: int
    refused: int
    sent: int
    lost: int


class Overview(NamedTuple):
    """What all processes say; ``open`` is how many sockets there are, of which ``connections`` are some."""

    processes: tuple[Process, ...]
    idents: tuple[Ident, ...]
    connections: tuple[Connection, ...]
    open: int
    alone: bool = False  # the store is in memory: nobody knows of other processes

    @property
    def is_whole(self) -> bool:
        """Whether every process that holds something has been heard."""
        return all(process.open is not None or not process.held for process in self.processes)


_looks: dict[tuple[int, str], tuple[float, Overview]] = {}
_lock = Lock()


def look(store: MemoryStore | RedisStore, search: str = "") -> Overview:
    """What is open at present, as far as processes have said by now; they are asked for more. Raises StoreError.

    A few commands in Redis, whoever looks and however often: never a search through its keys.
    """
    key, now = (id(store), search), time.monotonic()
    known = _looks.get(key)
    if known and now - known[0] < (FRESH_SECONDS if known[1].is_whole else HASTE_SECONDS):
        return known[1]
    found = _alone(store, search) if isinstance(store, MemoryStore) else _asked(store, search)
    with _lock:
        if len(_looks) >= MOST_LOOKS:
            _looks.clear()
        _looks[key] = now, found
    return found


def look_again() -> None:
    """Something was closed: what was seen before holds no more."""
    _looks.clear()


def _alone(store: MemoryStore, search: str) -> Overview:
    uid, held = store.leases.uid, len(store.leases)
    listed = Reporter(store, live).listed(search, MOST)
    census = {uid: {**json.loads(store.leases.report()), "held": held}}
    return _merged(census, {uid: listed})._replace(alone=True)


def _asked(store: RedisStore, search: str) -> Overview:
    census = dict(list(Ledger(store).census().items())[:MOST_PROCESSES])
    most = max(20, min(MOST, MOST_SOCKETS // max(1, len(census))))
    store.orders.ask(Order(REPORT, search=search, most=most), about(search), round(FRESH_SECONDS * 1000))
    calls = [("reported", (store.process_key(report_key(uid, search)),), ()) for uid in census]
    replies = store.pipeline(calls) if calls else []
    return _merged(census, {uid: _read(reply) for uid, reply in zip(census, replies, strict=True)})


def _merged(census: Mapping[str, Mapping[str, Any]], reports: Mapping[str, dict[str, Any]]) -> Overview:
    processes = tuple([_process(uid, meta, reports[uid]) for uid, meta in census.items()])
    rows = [_connection(process, row) for process in processes for row in reports[process.uid].get("sockets", ())]
    return Overview(
        processes,
        _idents(report.get("idents", ()) for report in reports.values()),
        tuple(sorted(rows, key=lambda row: (row.idents, -row.age))),
        sum(process.open or 0 for process in processes),
    )


def _idents(reports: Iterable[Iterable[tuple[str, str, int]]]) -> tuple[Ident, ...]:
    found: dict[str, Ident] = {}
    for report in reports:
        for shown, tag, number in report:
            before = found.get(tag, Ident(shown, tag, 0, 0))
            found[tag] = Ident(shown, tag, before.open + number, before.processes + 1)
    return tuple(sorted(found.values(), key=lambda one: (-one.open, one.shown))[:MOST_IDENTS])


def _process(uid: str, meta: Mapping[str, Any], report: Mapping[str, Any]) -> Process:
    name = str(meta.get("host") or "?").partition("/")[0]
    return Process(uid, name, int(meta.get("pid") or 0), held_by(meta), report.get("open"))


def _connection(process: Process, row: Mapping[str, Any]) -> Connection:
    known = {name: value for name, value in row.items() if name in Connection._fields}
    return Connection(uid=process.uid, pid=process.pid, **{**known, "idents": tuple(row["idents"])})


def _read(reply: Any) -> dict[str, Any]:
    """What a process has written; an empty report for anything else."""
    try:
        found = json.loads(reply)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
