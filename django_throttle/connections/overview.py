"""The open connections of all processes, merged from the lists that processes write when they are asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.conf import conf
from django_throttle.connections.control import MOST, MOST_IDENTS, Reporter, about, report_key
from django_throttle.connections.process import open_sockets
from django_throttle.connections.processes import ProcessRecords, batches, number
from django_throttle.core.commands import REPORT, ControlMessage
from django_throttle.stores import MemoryStore, RedisStore

FRESH_SECONDS: Final = 1.0  # for which a complete overview is cached
QUIET_MS: Final = 1000  # for which processes are not asked the same again
ANSWERS: Final = 3  # × RULES_POLL is when each process has read its control messages and answered
HASTE_SECONDS: Final = 0.3  # for which an incomplete overview is cached
MOST_PROCESSES: Final = 1000
MOST_SOCKETS: Final = 2000  # that all processes together list
MOST_CACHED: Final = 8  # overviews


class Process(NamedTuple):
    """A live process; ``open`` is how many sockets of the search it has, None until it has answered."""

    uid: str
    host: str
    pid: int
    leases: int
    open: int | None


class Ident(NamedTuple):
    """An ident with open sockets: as shown, as control messages name it, and in how many processes."""

    shown: str
    tag: str
    open: int
    processes: int

    @property
    def quoted(self) -> str:
        """The search that finds exactly this ident."""
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
    """The answers of all processes; ``open`` is how many sockets there are, ``connections`` lists some of them."""

    processes: tuple[Process, ...]
    idents: tuple[Ident, ...]
    connections: tuple[Connection, ...]
    open: int
    alone: bool = False  # the store is in memory, so other processes are unknown
    waited: bool = True  # long enough for answers: a silent process without leases has no socket
    doubtful: tuple[str, ...] = ()  # tags of idents that a process may have left out of its list
    unseen: int = 0  # processes beyond MOST_PROCESSES, which were not asked

    @property
    def is_whole(self) -> bool:
        """Whether every process that may have sockets has answered, about every ident shown."""
        silent = [process for process in self.processes if process.open is None]
        has_answers = all(self.waited and not process.leases for process in silent)
        return has_answers and not self.doubtful and not self.unseen


_cache: dict[tuple[int, str], tuple[float, Overview]] = {}
_lock = Lock()


def look(store: MemoryStore | RedisStore, search: str = "") -> Overview:
    """The open connections by the answers so far; asks processes for new ones. Raises StoreError.

    It takes a few commands in Redis, cached for a moment, and never scans its keys.
    """
    key, now = (id(store), search), time.monotonic()
    cached = _cache.get(key)
    if cached and now - cached[0] < (FRESH_SECONDS if cached[1].is_whole else HASTE_SECONDS):
        return cached[1]
    overview = _asked(store, search) if store.is_remote else _alone(store, search)
    with _lock:
        if len(_cache) >= MOST_CACHED:
            _cache.clear()
        _cache[key] = now, overview
    return overview


def looks(store: MemoryStore | RedisStore, search: str, seconds: float) -> Iterator[Overview]:
    """Look until every process has answered, or for so many seconds."""
    until = time.monotonic() + seconds
    yield (overview := look(store, search))
    while not overview.is_whole and time.monotonic() < until:
        time.sleep(0.1)
        yield (overview := look(store, search))


def look_again() -> None:
    """Clear the cache, as a socket was closed."""
    _cache.clear()


def _alone(store: MemoryStore, search: str) -> Overview:
    uid = store.leases.uid
    listed = Reporter(store, open_sockets).listed(search, MOST)
    census = {uid: {**json.loads(store.leases.report()), "held": len(store.leases)}}
    return _merged(census, {uid: listed})._replace(alone=True)


def _asked(store: RedisStore, search: str) -> Overview:
    census = ProcessRecords(store).census()
    seen = dict(islice(census.items(), MOST_PROCESSES))
    message = ControlMessage(REPORT, search=search, most=max(2, min(MOST, MOST_SOCKETS // max(1, len(seen)))))
    waited = store.control.ask(message, about(search), QUIET_MS) >= ANSWERS * conf().RULES_POLL
    calls = [("reported", (store.process_key(report_key(uid, search)),), ()) for uid in seen]
    replies = [reply for some in batches(calls) for reply in store.pipeline(some)]
    reports = {uid: _read(reply) for uid, reply in zip(seen, replies, strict=True)}
    overview = _merged(seen, reports)._replace(waited=waited, unseen=len(census) - len(seen))
    if overview.doubtful:
        tags = " ".join(overview.doubtful)
        store.control.ask(message._replace(tag=tags), f"{about(search)}:{about(tags)}", QUIET_MS)
    return overview


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
    by_tag: dict[str, Ident] = {}
    for report in reports:
        for shown, tag, count in report:
            before = by_tag.get(tag, Ident("", tag, 0, 0))
            by_tag[tag] = Ident(shown or before.shown, tag, before.open + count, before.processes + (count > 0))
    present = (ident for ident in by_tag.values() if ident.open)
    return tuple(sorted(present, key=lambda one: (-one.open, one.shown))[:MOST_IDENTS])


def _doubtful(idents: Iterable[Ident], reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Tags of idents that may have more sockets: some process has more idents than it lists, and does not list them."""
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
    """The report that a process has written; empty if it cannot be read."""
    try:
        report = json.loads(reply)
    except (TypeError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
