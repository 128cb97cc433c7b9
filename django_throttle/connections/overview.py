"""The open connections of all processes: each process lists its own when it is asked, and the lists are merged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.connections.control import MOST, MOST_IDENTS, Reporter, about, report_key
from django_throttle.connections.process import open_sockets
from django_throttle.connections.processes import ProcessRecords, batches, number
from django_throttle.core.commands import REPORT, ControlMessage
from django_throttle.stores import MemoryStore, RedisStore

FRESH_SECONDS: Final = 1.0  # for which an overview is shown again
QUIET_MS: Final = 1000  # in which processes are not asked the same again
ANSWERS: Final = 3  # times as long as processes take to ask for messages: by then each has answered
HASTE_SECONDS: Final = 0.3  # the same while some process has not answered
MOST_PROCESSES: Final = 1000
MOST_SOCKETS: Final = 2000  # that all processes together list
MOST_LOOKS: Final = 8  # overviews that are kept


class Process(NamedTuple):
    """A process that lives; ``open`` is how many sockets of the search it has, None when it has not said so yet."""

    uid: str
    host: str
    pid: int
    held: int
    open: int | None


class Ident(NamedTuple):
    """Whoever has sockets open: as it is shown and as a control message names it, how many, in how many processes."""

    shown: str
    tag: str
    open: int
    processes: int

    @property
    def quoted(self) -> str:
        """The search that finds all of it, and nobody else."""
        return f'"{self.shown}"'


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
    waited: bool = True  # for as long as an answer takes: who holds nothing and is still silent has no socket
    doubtful: tuple[str, ...] = ()  # tags of idents that some process has been too full to list
    unseen: int = 0  # processes that are too many to be asked

    @property
    def is_whole(self) -> bool:
        """Whether every process that may have something has been heard, of everyone who is shown."""
        silent = [process for process in self.processes if process.open is None]
        is_heard = all(self.waited and not process.held for process in silent)
        return is_heard and not self.doubtful and not self.unseen


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
    found = _asked(store, search) if store.is_remote else _alone(store, search)
    with _lock:
        if len(_looks) >= MOST_LOOKS:
            _looks.clear()
        _looks[key] = now, found
    return found


def look_again() -> None:
    """Forget kept overviews, as something was closed."""
    _looks.clear()


def _alone(store: MemoryStore, search: str) -> Overview:
    uid, held = store.leases.uid, len(store.leases)
    listed = Reporter(store, open_sockets).listed(search, MOST)
    census = {uid: {**json.loads(store.leases.report()), "held": held}}
    return _merged(census, {uid: listed})._replace(alone=True)


def _asked(store: RedisStore, search: str) -> Overview:
    census = ProcessRecords(store).census()
    seen = dict(islice(census.items(), MOST_PROCESSES))
    message = ControlMessage(REPORT, search=search, most=max(2, min(MOST, MOST_SOCKETS // max(1, len(seen)))))
    waited = store.control.ask(message, about(search), QUIET_MS) >= ANSWERS * conf().RULES_POLL
    calls = [("reported", (store.process_key(report_key(uid, search)),), ()) for uid in seen]
    replies = [reply for some in batches(calls) for reply in store.pipeline(some)]
    reports = {uid: _read(reply) for uid, reply in zip(seen, replies, strict=True)}
    found = _merged(seen, reports)._replace(waited=waited, unseen=len(census) - len(seen))
    if found.doubtful:
        tags = " ".join(found.doubtful)
        store.control.ask(message._replace(tag=tags), f"{about(search)}:{about(tags)}", QUIET_MS)
    return found


def _merged(census: Mapping[str, Mapping[str, Any]], reports: Mapping[str, dict[str, Any]]) -> Overview:
    processes = tuple([_process(uid, meta, reports[uid]) for uid, meta in census.items()])
    rows = [_connection(process, row) for process in processes for row in reports[process.uid].get("sockets", ())]
    idents = _idents(report.get("idents", ()) for report in reports.values())
    return Overview(
        processes,
        idents,
        tuple(sorted(rows, key=lambda row: (row.idents, -row.age))),
        sum(process.open or 0 for process in processes),
        doubtful=_doubtful(idents, reports.values()),
    )


def _idents(reports: Iterable[Iterable[tuple[str, str, int]]]) -> tuple[Ident, ...]:
    found: dict[str, Ident] = {}
    for report in reports:
        for shown, tag, count in report:
            before = found.get(tag, Ident("", tag, 0, 0))
            found[tag] = Ident(shown or before.shown, tag, before.open + count, before.processes + (count > 0))
    known = (ident for ident in found.values() if ident.open)
    return tuple(sorted(known, key=lambda one: (-one.open, one.shown))[:MOST_IDENTS])


def _doubtful(idents: Iterable[Ident], reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Tags of those who may have sockets in a process that lists others: it has more idents than it has listed."""
    lists = [(report.get("of", 0), report.get("idents", ())) for report in reports]
    cut = [{row[1] for row in rows} for count, rows in lists if count > sum(row[2] > 0 for row in rows)]
    return tuple(sorted(ident.tag for ident in idents if not all(ident.tag in listed for listed in cut)))


def _process(uid: str, meta: Mapping[str, Any], report: Mapping[str, Any]) -> Process:
    name = str(meta.get("host") or "?").partition("/")[0]
    return Process(uid, name, number(meta, "pid"), number(meta, "held"), report.get("open"))


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
