"""Reads the rules of the database on a thread of its own, over one connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Final
from weakref import ref

from django.db import connections

from django_throttle.core import Override, Rule


class Fault(str):
    """What is wrong with a rule or an override, as a sentence."""

    __slots__ = ()


# The name of a rule or the number of an override, and what was made of it: a Rule, an Override or a Fault.
Made = tuple[Any, Any]
# The rows of a table by their values, as the database's driver gives them.
Rows = Mapping[tuple[Any, ...], Made]
NO_ROWS: Final[Rows] = {}


@dataclass(frozen=True, slots=True)
class Found:
    """The rules of one source, and for each invalid one its name and what is wrong (``faults``).

    The database has overrides too, and of each invalid one its number and what is wrong (``unfit``). ``rows`` are
    those of both tables.
    """

    rules: Mapping[str, Rule]
    faults: Mapping[str, str]
    overrides: tuple[Override, ...] = ()
    unfit: Mapping[int, str] = field(default_factory=dict)
    rows: tuple[Rows, Rows] = (NO_ROWS, NO_ROWS)


NOTHING: Final = Found({}, {})


class Transaction:
    """The transaction that is open in a connection of the database."""

    def __init__(self, connection: Any) -> None:
        self._connection = ref(connection)

    def lasts(self) -> bool:
        """True until it is committed or rolled back; may be asked in any thread."""
        connection = self._connection()
        return connection is not None and bool(connection.in_atomic_block)


@dataclass(frozen=True, slots=True)
class Reading:
    """Both sources, as they were read. ``failure`` is why the database could not be read.

    ``open_in`` is the transaction that it was read in, whose edits may never be committed.
    """

    settings: Found
    database: Found = NOTHING
    failure: Exception | None = None
    open_in: Transaction | None = None

    @property
    def settled(self) -> bool:
        return self.open_in is None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple({**self.settings.rules, **self.database.rules}.values())

    @property
    def overrides(self) -> tuple[Override, ...]:
        return self.database.overrides

    @property
    def unfit(self) -> frozenset[tuple[int, str]]:
        """What is wrong with overrides that are skipped: number and message."""
        return frozenset(self.database.unfit.items())

    @property
    def faults(self) -> frozenset[tuple[str, str, str]]:
        """What is wrong with rules that are skipped: source, name and message."""
        sources = (("settings", self.settings), ("database", self.database))
        return frozenset((source, *fault) for source, found in sources for fault in found.faults.items())


logger = logging.getLogger("django_throttle")

# Longer than two polls are usually apart where each of them reads.
IDLE_SECONDS: Final = 5.0


class Reader:
    """Calls ``read`` in a thread of its own, so that a database that hangs holds up nothing else.

    The thread ends, and its connection with it, after ``idle`` seconds without a request.
    """

    def __init__(self, read: Callable[[str | None], object], idle: float = IDLE_SECONDS) -> None:
        self._read = read
        self._idle = idle
        self._news = Condition()
        self._asked: tuple[str | None] | None = None
        self._ended = False
        self._thread: Thread | None = None

    def ask(self, seen: str | None) -> bool:
        """Have it read, unless it is reading; never waits. False after ``end``.

        Raises RuntimeError where no thread can be started.
        """
        with self._news:
            if self._asked is not None or self._ended:
                return not self._ended
            if self._thread is None:
                thread = Thread(target=self._run, name="django_throttle.rules", daemon=True)
                thread.start()
                self._thread = thread
            self._asked = (seen,)
            self._news.notify_all()
            return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the reading has ended; False when it takes longer."""
        with self._news:
            return self._news.wait_for(lambda: self._asked is None, seconds)

    def end(self) -> None:
        """End the thread, after the present reading; further requests are ignored."""
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _run(self) -> None:
        try:
            while (asked := self._next()) is not None:
                self._read_once(*asked)
        finally:
            connections.close_all()  # this thread's own

    def _next(self) -> tuple[str | None] | None:
        with self._news:
            self._news.wait_for(lambda: self._asked is not None or self._ended, self._idle)
            if self._asked is None or self._ended:
                self._thread = self._asked = None
            return self._asked

    def _read_once(self, seen: str | None) -> None:
        try:
            _drop_what_fails()
            self._read(seen)
        except Exception:
            logger.exception("the rules could not be read: those in force stay, and the next poll tries again")
        finally:
            with self._news:
                self._asked = None
                self._news.notify_all()


def _drop_what_fails() -> None:
    """Close connections that the server has closed, or whose transaction would hide new rules."""
    for connection in connections.all(initialized_only=True):
        is_open = connection.connection is not None
        if is_open and not (connection.settings_dict["AUTOCOMMIT"] and connection.is_usable()):
            connection.close()
