"""Meters of requests, frames and tasks: queries, rows, database time, response bytes, wall time and CPU time.

A context variable holds the current meter. A wrapper around the queries of each connection adds to that meter. So sync
and async code is measured, on each database, and in each thread with the caller's context.

Queries are counted as in Django's query log, except for BEGIN, COMMIT and ROLLBACK; ``executemany`` counts once. Rows
are counted if Django's cursors fetch them. ``callproc``, and queries of a driver's own cursor, are not measured.
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

# Names of the measures in rules, logs and commands.
MEASURES: Final = ("queries", "rows", "db_ms", "wall_ms", "cpu_ms", "response_bytes")


@dataclass(slots=True)
class QueryUsage:
    """A number of queries and fetched rows, and the time of both."""

    queries: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, other: QueryUsage) -> None:
        self.queries += other.queries
        self.rows += other.rows
        self.seconds += other.seconds


@dataclass(slots=True)
class DatabaseUsage(QueryUsage):
    """The usage of a database, in total and by model."""

    models: dict[str, QueryUsage] = field(default_factory=dict)  #: by label, such as ``auth.User``, where it is known


class Meter:
    """Measures usage from its creation on.

    CPU time is that of the thread that created the meter. On an event loop it includes other calls of that time.
    """

    bytes = 0  #: of the response
    _wall: float | None = None  # seconds; None until the meter is stopped
    _cpu = 0.0  # seconds, as last read in the meter's thread

    def __init__(self, bytes: int = 0) -> None:  # noqa: A002
        if bytes:
            self.bytes = bytes
        #: Usage by database alias, label of the model ("" if unknown) and thread, which alone changes it.
        self.uses: dict[tuple[str, str, int], QueryUsage] = {}
        self.thread = get_ident()
        self._began, self._cpu_began = perf_counter(), thread_time()

    @property
    def queries(self) -> int:
        return sum(use.queries for use in tuple(self.uses.values()))

    @property
    def rows(self) -> int:
        return sum(use.rows for use in tuple(self.uses.values()))

    @property
    def seconds(self) -> float:
        """The seconds that databases took for queries and for fetching rows."""
        return sum(use.seconds for use in tuple(self.uses.values()))

    @property
    def db_ms(self) -> float:
        """The milliseconds that databases took for queries and for fetching rows."""
        return self.seconds * 1e3

    @property
    def wall_ms(self) -> float:
        return 1e3 * (perf_counter() - self._began if self._wall is None else self._wall)

    @property
    def cpu_ms(self) -> float:
        """The milliseconds of CPU time. Another thread gets the value that was last read in the meter's thread."""
        if self._wall is None and get_ident() == self.thread:
            self._cpu = thread_time() - self._cpu_began
        return self._cpu * 1e3

    @property
    def response_bytes(self) -> int:
        return self.bytes

    @property
    def measures(self) -> dict[str, float]:
        """The values of all ``MEASURES`` by name."""
        total = QueryUsage()
        for use in tuple(self.uses.values()):
            total.add(use)
        values = (total.queries, total.rows, total.seconds * 1e3, self.wall_ms, self.cpu_ms, self.bytes)
        return dict(zip(MEASURES, values, strict=True))

    @property
    def databases(self) -> dict[str, DatabaseUsage]:
        """The usage of each database by alias."""
        usages: dict[str, DatabaseUsage] = {}
        for (alias, label, _), use in tuple(self.uses.items()):
            database = usages.setdefault(alias, DatabaseUsage())
            database.add(use)
            if label:
                database.models.setdefault(label, QueryUsage()).add(use)
        return usages

    def stop(self, at: float | None = None, cpu_at: float | None = None) -> bool:
        """Stop wall and CPU time. Return False if the meter was stopped before.

        ``at`` and ``cpu_at`` are the time of the stop, by ``perf_counter`` and by ``thread_time`` of the meter's
        thread; by default now.
        """
        if self._wall is not None:
            return False
        if cpu_at is None:
            _ = self.cpu_ms
        else:
            self._cpu = cpu_at - self._cpu_began
        self._wall = (perf_counter() if at is None else at) - self._began
        return True

    def add(self, other: Meter) -> None:
        """Add the queries and rows of another meter."""
        for key, use in tuple(other.uses.items()):
            self.uses.setdefault(key, QueryUsage()).add(use)


current_meter: Final[ContextVar[Meter | None]] = ContextVar("django_throttle_meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Measure the body of the ``with`` statement by a new meter, and add its queries and rows to the outer meter."""
    outer, meter = current_meter.get(), Meter()
    current_meter.set(meter)
    try:
        yield meter
    finally:
        meter.stop()
        current_meter.set(outer)
        if outer is not None:
            outer.add(meter)


def install() -> None:
    """Count the queries of all database connections, present and future."""
    connection_created.connect(_connected, dispatch_uid="django_throttle.costs.meter")
    for connection in connections.all(initialized_only=True):
        _connected(connection)


def _connected(connection: BaseDatabaseWrapper, **_: object) -> None:
    wrappers = connection.execute_wrappers
    if count_query not in wrappers:
        wrappers.insert(0, count_query)  # first, because ``connection.execute_wrapper`` removes the last on exit


def count_query(execute: Callable[..., T], sql: Any, params: object, many: bool, context: dict[str, Any]) -> T:
    """Run a query, and count it in the current meter. An execute wrapper of Django's connections."""
    meter = current_meter.get()
    if meter is None:
        return execute(sql, params, many, context)
    label = _labels.get(sql) if type(sql) is str else ""  # psycopg has other types of statements
    if label is None:
        label = label_of(sql)
    if label is BEGIN_LABEL:
        return execute(sql, params, many, context)
    key = context["connection"].alias, label, get_ident()
    use = meter.uses.get(key)
    if use is None:
        use = meter.uses.setdefault(key, QueryUsage())
    cursor = context["cursor"]
    cursor_class = type(cursor)
    cursor.__class__ = _counting_classes.get(cursor_class) or counting_class(cursor_class)
    cursor.throttle_use = use
    use.queries += 1
    start = perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        use.seconds += perf_counter() - start


_NO_ROW: Final = object()


class RowCountingCursor:
    """A mixin for Django's cursors that counts the rows they fetch. A cursor gets it with its first counted query."""

    throttle_use: QueryUsage
    cursor: Any  #: cursor of the driver
    db: BaseDatabaseWrapper

    def fetchone(self) -> object:
        row = self._fetched(self.cursor.fetchone)
        if row is not None:
            self.throttle_use.rows += 1
        return row

    def fetchmany(self, *size: int, **named: int) -> Sequence[object]:
        # Used by the ORM, so it is written without another function call.
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
                row = next(rows, _NO_ROW)
            finally:
                use.seconds += perf_counter() - start
            if row is _NO_ROW:
                return
            use.rows += 1
            yield row


_counting_classes: Final[dict[type, type]] = {}


def counting_class(cursor_class: type) -> type:
    """Return the subclass of a cursor class that counts rows. Return the class itself if it has own fetch methods."""
    counting = cursor_class
    has_fetch = any(hasattr(cursor_class, name) for name in ("fetchone", "fetchmany", "fetchall"))
    if issubclass(cursor_class, CursorWrapper) and not has_fetch:
        bases = (RowCountingCursor, cursor_class)
        counting = type(cursor_class.__name__, bases, {"__module__": cursor_class.__module__})
    _counting_classes[cursor_class] = _counting_classes[counting] = counting
    return counting


# Stands for a statement that is not counted, in place of a label. Only SQLite's backend runs BEGIN as a query.
BEGIN_LABEL: Final = "BEGIN"
MAX_CACHED_STATEMENTS: Final = 1024
MAX_CACHED_LENGTH: Final = 4096  # characters of a cached statement
_labels: Final[dict[str, str]] = {}

_PART = r"""(?:"[^"]+"|`[^`]+`|\[[^]]+\]|[\w$]+)"""
_NAME = rf"({_PART}(?:\.{_PART})*)"
_CHANGE_TABLE = re.compile(
    rf"\s*(?:(?:INSERT|REPLACE|MERGE)\s[\w\s]*?INTO|UPDATE|DELETE\s+FROM)\s+(?:ONLY\s+)?{_NAME}", re.IGNORECASE
)
_SELECT = re.compile(r"[\s(]*SELECT\b", re.IGNORECASE)
_FROM = re.compile(rf"\b[Ff][Rr][Oo][Mm]\s+(?:(?i:ONLY\s+))?(?:(\()|{_NAME})")


def label_of(sql: str) -> str:
    """Return the label of the model whose table a statement changes, or reads first; "" if it is unknown."""
    label = BEGIN_LABEL if sql.startswith(BEGIN_LABEL) else _labels_of_tables().get(_plain(table_of(sql)), "")
    if len(sql) <= MAX_CACHED_LENGTH:
        if len(_labels) >= MAX_CACHED_STATEMENTS:
            _labels.clear()
        _labels[sql] = label
    return label


def table_of(sql: str) -> str:
    """Return the table that a statement changes, or the first that it reads outside of parentheses, as written.

    This is no SQL parser: return "" for a statement with WITH, and for other unusual statements.
    """
    if change := _CHANGE_TABLE.match(sql):
        return change[1]
    if not (select := _SELECT.match(sql)):
        return ""
    depth = select[0].count("(")
    open_parentheses, end = depth, select.end()
    for match in _FROM.finditer(sql, end):
        open_parentheses += sql.count("(", end, match.start()) - sql.count(")", end, match.start())
        end = match.start()
        if open_parentheses == depth:
            if match[2]:
                return match[2]
            depth += 1  # FROM (SELECT …): continue in the subquery
    return ""


@cache
def _labels_of_tables() -> dict[str, str]:
    models = sorted(apps.get_models(include_auto_created=True), key=lambda model: model._meta.managed)
    return {_plain(model._meta.db_table): model._meta.label for model in models if not model._meta.proxy}


def _plain(table: str) -> str:
    return table.rpartition(".")[2].strip('"`[]').lower()
