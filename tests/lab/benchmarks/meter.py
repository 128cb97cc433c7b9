"""What the meter adds to a query: one whose result is fetched as Django's ORM does, with and without a meter in use.

The driver's cursor is one that answers at once, so that what is added can be told from what a database takes. The
cursors belong to the connection itself, as those that it makes do: reading an attribute of ``django.db.connection``,
which stands for it, takes longer than counting a query.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.utils import CursorWrapper

from django_throttle.meter import Meter as QueryMeter
from django_throttle.meter import count_query, in_use
from tests.lab.benchmarks.table import Row

SECTION = "what a request's meter adds"
CALLS, BLOCKS = 2_000, 9
COLUMNS = ", ".join(f'"auth_user"."{name}"' for name in ("id", "username", "email", "is_active", "date_joined"))
SQL = f'SELECT {COLUMNS} FROM "auth_user" WHERE "auth_user"."id" = '


class Answers:
    """A driver's cursor with one row."""

    def execute(self, *query: Any) -> None:
        self.rows = [(1,)]

    def fetchmany(self, size: int) -> list[Any]:
        rows, self.rows = self.rows, []
        return rows

    def close(self) -> None:
        pass


def select(db: Any) -> None:
    """With a text that is made anew, as the ORM makes it, and both fetches of a short result."""
    with CursorWrapper(Answers(), db) as cursor:
        cursor.execute(SQL + "%s", (1,))
        while cursor.fetchmany(100):
            pass


def change(db: Any) -> None:
    """The same without a result."""
    with CursorWrapper(Answers(), db) as cursor:
        cursor.execute(SQL + "%s", (1,))


def timed(work: Callable[[], object]) -> float:
    """Microseconds of CPU time a call; the least of several blocks, as the differences are small."""
    return min(timeit.repeat(work, number=CALLS, repeat=BLOCKS, timer=process_time)) / CALLS * 1e6


def added(query: Callable[[Any], object], rounds: int) -> tuple[float, float]:
    """What a query takes longer with the wrapper alone, and with a meter in use; one way after the other."""
    found, db = [], connections[DEFAULT_DB_ALIAS]
    work = partial(query, db)
    for _ in range(rounds):
        db.execute_wrappers.clear()
        bare = timed(work)
        db.execute_wrappers[:] = [count_query]
        idle = timed(work)
        in_use.set(QueryMeter())
        found.append((bare, idle, timed(work)))
        in_use.set(None)
    bare, idle, metered = map(min, zip(*found, strict=True))
    return idle - bare, metered - bare


def rows(rounds: int) -> Iterator[Row]:
    """In this process, as different processes differ by more than is measured."""
    import django

    django.setup()
    for what, query in (("a query", change), ("a query, its rows fetched", select)):
        idle, metered = added(query, rounds)
        yield Row(SECTION, what, metered, "µs", asked=3.0)
        if query is change:
            yield Row(SECTION, "a query, no meter in use", idle, "µs", asked=0.6)
    yield Row(SECTION, "a meter is made and put in use", timed(lambda: in_use.set(QueryMeter())), "µs")
    in_use.set(None)
