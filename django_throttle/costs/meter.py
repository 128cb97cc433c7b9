"""Measures what a request, frame or task uses: queries, rows, database time, bytes, wall time, CPU time.

A context variable names the meter in use. A wrapper around the queries of each connection adds to it, so that sync and
async code is measured, in each database and in each thread that has the caller's context.

What counts as a query is what Django's query log lists, but for BEGIN, COMMIT and ROLLBACK; ``executemany`` is one.
Rows are those that are fetched by Django's cursors. ``callproc``, and what a driver's own cursor is asked, is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final, TypeVar

from django.apps import apps
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper

T = TypeVar("T")

# What a meter measures; the names of the units in which rules, logs and commands speak of it.
MEASURES: Final = ("queries", "rows", "db_ms", "wall_ms", "cpu_ms", "response_bytes")


@dataclass(slots=True)
class QueryUsage:
    """So many queries, so many rows fetched, and how many seconds both took."""

    queries: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, other: QueryUsage) -> None:
        """Add what the other has."""
        self.queries += other.queries
        self.rows += other.rows
        self.seconds += other.seconds


@dataclass(slots=True)
class DatabaseUse(QueryUsage):
    """The use of one database; of it, what can be told for a model, by the model's label, such as ``auth.User``."""

    models: dict[str, QueryUsage] = field(default_factory=dict)


class Meter:
    """What has been used since this was made; ``bytes`` are those of the response.

    The time of the thread in which it was made counts as CPU time: on an event loop that is also what other calls used
    meanwhile.
    """

    bytes = 0
    _wall: float | None = None  # seconds, once it has stopped
    _cpu = 0.0  # seconds, when it was last read in its thread

    def __init__(self, bytes: int = 0) -> None:  # noqa: A002  (one is made for each request)
        if bytes:
            self.bytes = bytes
        # By alias, label of the model ("" where it cannot be told), and thread: each is changed by one thread alone.
        self.uses: dict[tuple[str, str, int], QueryUsage] = {}
        self.thread = get_ident()  # whose CPU time is read
        self._began, self._cpu_began = perf_counter(), thread_time()

    @property
    def queries(self) -> int:
        return sum(use.queries for use in tuple(self.uses.values()))

    @property
    def rows(self) -> int:
        return sum(use.rows for use in tuple(self.uses.values()))

    @property
    def seconds(self) -> float:
        """The time that the databases took, for queries and for fetching rows."""
        return sum(use.seconds for use in tuple(self.uses.values()))

    @property
    def db_ms(self) -> float:
        """The same in milliseconds."""
        return self.seconds * 1e3

    @property
    def wall_ms(self) -> float:
        return 1e3 * (perf_counter() - self._began if self._wall is None else self._wall)

    @property
    def cpu_ms(self) -> float:
        """Milliseconds; from another thread than that of the meter: as they were when last read there."""
        if self._wall is None and get_ident() == self.thread:
            self._cpu = thread_time() - self._cpu_began
        return self._cpu * 1e3

    @property
    def response_bytes(self) -> int:
        return self.bytes

    @property
    def measures(self) -> dict[str, float]:
        """All of ``MEASURES``."""
        whole = QueryUsage()
        for use in tuple(self.uses.values()):
            whole.add(use)
        values = (whole.queries, whole.rows, whole.seconds * 1e3, self.wall_ms, self.cpu_ms, self.bytes)
        return dict(zip(MEASURES, values, strict=True))

    @property
    def databases(self) -> dict[str, DatabaseUse]:
        """The use of each database, by its alias."""
        found: dict[str, DatabaseUse] = {}
        for (alias, label, _), use in tuple(self.uses.items()):
            database = found.setdefault(alias, DatabaseUse())
            database.add(use)
            if label:
                database.models.setdefault(label, QueryUsage()).add(use)
        return found

    def stop(self, at: float | None = None, cpu_at: float | None = None) -> bool:
        """Let wall and CPU time go no further; False when they stood still already.

        ``at`` and ``cpu_at`` are when that was, on the clocks ``perf_counter`` and ``thread_time`` of its thread.
        """
        if self._wall is not None:
            return False
        if cpu_at is None:
            _ = self.cpu_ms
        else:
            self._cpu = cpu_at - self._cpu_began
        self._wall = (perf_counter() if at is None else at) - self._began
        return True

    def take(self, other: Meter) -> None:
        """Add the queries and rows of another meter."""
        for key, use in tuple(other.uses.items()):
            self.uses.setdefault(key, QueryUsage()).add(use)


in_use: Final[ContextVar[Meter | None]] = ContextVar("django_throttle_meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measure what is done inside by a meter of its own; what it counted is then added to the one around it."""
    outer, meter = in_use.get(), Meter()
    in_use.set(meter)
    try:
        yield meter
    finally:
        meter.stop()
        in_use.set(outer)
        if outer is not None:
            outer.take(meter)


def install() -> None:
    """Have the queries of all connections counted, those open already and those to come."""
    connection_created.connect(_connected, dispatch_uid="django_throttle.costs.meter")
    for connection in connections.all(initialized_only=True):
        _connected(connection)


def _connected(connection: BaseDatabaseWrapper, **_: object) -> None:
    wrappers = connection.execute_wrappers
    if count_query not in wrappers:
        wrappers.insert(0, count_query)  # not last: ``with connection.execute_wrapper`` takes off the last


def count_query(execute: Callable[..., T], sql: Any, params: object, many: bool, context: dict[str, Any]) -> T:
    """The wrapper: run a query, and count it in the meter in use."""
    meter = in_use.get()
    if meter is None:
        return execute(sql, params, many, context)
    label = _labels.get(sql) if type(sql) is str else ""  # psycopg has texts of another kind
    if label is None:
        label = label_of(sql)
    if label is _BEGIN:
        return execute(sql, params, many, context)
    key = context["connection"].alias, label, get_ident()
    use = meter.uses.get(key)
    if use is None:
        use = meter.uses.setdefault(key, QueryUsage())
    cursor = context["cursor"]
    kind = type(cursor)
    cursor.__class__ = _counting.get(kind) or counting_class(kind)
    cursor.throttle_use = use
    use.queries += 1
    start = perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        use.seconds += perf_counter() - start


_END: Final = object()


class _CountsRows:
    """What a cursor of Django's becomes once it has run a query that is counted: fetching counts the rows."""

    throttle_use: QueryUsage
    cursor: Any  # the driver's
    db: BaseDatabaseWrapper

    def fetchone(self) -> object:
        row = self._fetched(self.cursor.fetchone)
        if row is not None:
            self.throttle_use.rows += 1
        return row

    def fetchmany(self, *size: int, **named: int) -> Sequence[object]:
        # The ORM's way, so it goes through no other call.
        use, start = self.throttle_use, perf_counter()
        try:
            rows: Sequence[object] = self.cursor.fetchmany(*size, **named)
        except Exception:
            with self.db.wrap_database_errors:
                raise
        finally:
            use.seconds += perf_counter() - start
        use.rows += len(rows)
        return rows

    def fetchall(self) -> Sequence[object]:
        rows: Sequence[object] = self._fetched(self.cursor.fetchall)
        self.throttle_use.rows += len(rows)
        return rows

    def _fetched(self, fetch: Callable[[], T]) -> T:
        start = perf_counter()
        try:
            return fetch()
        except Exception:
            with self.db.wrap_database_errors:
                raise
        finally:
            self.throttle_use.seconds += perf_counter() - start

    def __iter__(self) -> Iterator[object]:
        rows = super().__iter__()  # type: ignore[misc]
        while True:
            use, start = self.throttle_use, perf_counter()
            try:
                row = next(rows, _END)
            finally:
                use.seconds += perf_counter() - start
            if row is _END:
                return
            use.rows += 1
            yield row


_counting: Final[dict[type, type]] = {}


def counting_class(kind: type) -> type:
    """The class that counts rows, of a class of cursors; the class itself where it fetches in a way of its own."""
    found = kind
    if issubclass(kind, CursorWrapper) and not any(hasattr(kind, f"fetch{what}") for what in ("one", "many", "all")):
        found = type(kind.__name__, (_CountsRows, kind), {"__module__": kind.__module__})
    _counting[kind] = _counting[found] = found
    return found


_BEGIN: Final = "BEGIN"  # in place of a label: only SQLite's backend runs it as a query, so it is not counted
MOST_TEXTS: Final = 1024
LONGEST_TEXT: Final = 4096  # of those whose model is remembered
_labels: Final[dict[str, str]] = {}

_PART = r"""(?:"[^"]+"|`[^`]+`|\[[^]]+\]|[\w$]+)"""
_NAME = rf"({_PART}(?:\.{_PART})*)"
_CHANGE = re.compile(
    rf"\s*(?:(?:INSERT|REPLACE|MERGE)\s[\w\s]*?INTO|UPDATE|DELETE\s+FROM)\s+(?:ONLY\s+)?{_NAME}", re.IGNORECASE
)
_SELECT = re.compile(r"[\s(]*SELECT\b", re.IGNORECASE)
_FROM = re.compile(rf"\b[Ff][Rr][Oo][Mm]\s+(?:(?i:ONLY\s+))?(?:(\()|{_NAME})")


def label_of(sql: str) -> str:
    """The label of the model whose table a statement changes, or reads first; "" where that cannot be told."""
    label = _BEGIN if sql.startswith(_BEGIN) else _labels_of_tables().get(_plain(table_of(sql)), "")
    if len(sql) <= LONGEST_TEXT:
        if len(_labels) >= MOST_TEXTS:
            _labels.clear()
        _labels[sql] = label
    return label


def table_of(sql: str) -> str:
    """The table that a statement changes, or the first that it reads outside of parentheses; as it is written there.

    No parser of SQL: "" for a statement with WITH, and whatever else is unusual.
    """
    if change := _CHANGE.match(sql):
        return change[1]
    if not (select := _SELECT.match(sql)):
        return ""
    depth = select[0].count("(")
    opened, end = depth, select.end()
    for found in _FROM.finditer(sql, end):
        opened += sql.count("(", end, found.start()) - sql.count(")", end, found.start())
        end = found.start()
        if opened == depth:
            if found[2]:
                return found[2]
            depth += 1  # of a query inside, whose own table is meant
    return ""


@cache
def _labels_of_tables() -> dict[str, str]:
    models = sorted(apps.get_models(include_auto_created=True), key=lambda model: model._meta.managed)
    return {_plain(model._meta.db_table): model._meta.label for model in models if not model._meta.proxy}


def _plain(table: str) -> str:
    return table.rpartition(".")[2].strip('"`[]').lower()
