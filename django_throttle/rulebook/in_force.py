"""The rules in force in this process, and how it learns of new ones."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Event, Lock
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from django_throttle import detect_test_run
from django_throttle.conf import conf
from django_throttle.exceptions import StoreError
from django_throttle.rulebook import sources
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.rulebook.sources import NO_RULES, Reader, Reading, SourceRules, Transaction
from django_throttle.signals import rules_changed
from django_throttle.stores import AnyStore, get_store

logger = logging.getLogger("django_throttle")

_unsent: str | None = None


def publish() -> str | None:
    """Put a new version into Redis and return it; None without a Redis, or when it does not answer.

    Then the next ``fetch`` sends it.
    """
    global _unsent
    store = get_store()
    if not store.is_remote:
        return None
    _unsent = secrets.token_hex(8)
    return fetch(store)


def fetch(store: AnyStore) -> str | None:
    """The version in Redis, which creates one where it has none; None without a Redis, or when it does not answer."""
    global _unsent
    if not store.is_remote:
        return None
    mine = _unsent
    try:
        version = store.rules_version(mine or secrets.token_hex(8), publish=mine is not None)
    except StoreError as error:
        logger.debug("the version of the rules cannot be read from Redis: %s", error)
        return None
    if _unsent == mine:
        _unsent = None
    return version


class FirstReading:
    """The first reading, by a thread: the rules of settings, and then those of the database too.

    ``wait`` and ``await_`` return all rules; after ``seconds`` from the first call of either, those of settings. None
    waits without an end. Both raise what the reading raises.
    """

    def __init__(self) -> None:
        self._settings, self._all = Future[Snapshot](), Future[Snapshot]()
        for future in (self._settings, self._all):
            future.set_running_or_notify_cancel()  # so that a cancelled caller does not cancel it for others
        self._ends: float | None = None

    def know(self, rules: Snapshot, *, are_all: bool = True) -> None:
        """The rules are known; those of settings alone while the database is being read."""
        for future in (self._settings, self._all) if are_all else (self._settings,):
            if not future.done():
                future.set_result(rules)

    def fail(self, error: BaseException) -> None:
        """The reading has failed."""
        for future in (self._all, self._settings):
            if not future.done():
                future.set_exception(error)

    def wait(self, seconds: float | None) -> Snapshot:
        """Wait for the rules."""
        wait([self._all], self._left(seconds))
        return (self._all if self._all.done() else self._settings).result()

    async def await_(self, seconds: float | None) -> Snapshot:
        """Wait without blocking the event loop, and without a thread of the pool, which may be busy."""
        waiting = asyncio.wrap_future(self._all)
        await asyncio.wait([waiting], timeout=self._left(seconds))
        if waiting.done():
            return waiting.result()
        waiting.cancel()  # the loop may be closed before the reading ends
        return await asyncio.wrap_future(self._settings)

    def _left(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        if self._ends is None:
            self._ends = monotonic() + seconds
        return max(0.0, self._ends - monotonic())


# Without a Redis each poll reads all rows; where that takes long, less often, so that it takes a fortieth of the time.
RESTS: Final = 40
LONGEST_REST: Final = 0.6  # seconds; with the next poll an edit is in force within a second and a half


def _reread(seen: str | None) -> None:
    """Read in the thread; the rules of settings are ready before those of a database, which may be slow."""
    first = _book.first
    try:
        if _book.snapshot is None and sources.are_in_database():
            reading = Reading(sources.from_settings())
            with _book.lock:
                _report(reading)
            first.know(_made(reading), are_all=False)
        refresh(seen)
    except BaseException as error:
        _book.first = FirstReading()  # the next caller tries again
        first.fail(error)
        raise


@dataclass(slots=True)
class _Book:
    """The rules of this process, and how they were read.

    ``is_committed`` is False until the database was read outside a transaction; ``open_in`` is the transaction of the
    last reading.
    """

    snapshot: Snapshot | None = None
    pinned: Snapshot | None = None  # by a test, in place of the snapshot
    is_committed: bool = False
    open_in: Transaction | None = None
    seen: str | None = None  # the version in Redis before the last reading
    read_at: float = 0.0
    took: float = 0.0  # seconds that the last reading took
    newest: int = -1  # the number of the reading that the snapshot is from
    database: SourceRules = NO_RULES  # as it was read last
    faults: frozenset[tuple[str, str, str]] = frozenset()
    unfit: frozenset[tuple[int, str]] = frozenset()
    failing: bool = False
    reader: Reader = field(default_factory=lambda: Reader(_reread))
    first: FirstReading = field(default_factory=FirstReading)
    lock: Lock = field(default_factory=Lock)


_book: Final = _Book()
_readings: Final = count()


def current() -> Snapshot:
    """The rules in force. The first calls in a process wait until they are read, for DEADLINE at most.

    After that the rules of settings hold until the database has answered; with RULES_WAIT calls wait for it.
    """
    if _book.pinned is not None:
        return _book.pinned
    if _read_in_what_is_over():
        # Before the reading, so that it is tried only once.
        _book.open_in = None
        return refresh()
    if _book.snapshot is not None:
        return _book.snapshot
    first = _book.first
    return refresh() if _reads_here() or not _begin() else _put_in_force(first, first.wait(_patience()))


def present() -> Snapshot | None:
    """The rules in force if they are known without reading; else None."""
    if _book.open_in is None or not _read_in_what_is_over():  # asked for each frame of a socket
        return _book.pinned or _book.snapshot
    return _book.pinned


async def acurrent() -> Snapshot:
    """The rules in force, without blocking the event loop for the first reading."""
    if (found := present()) is not None:
        return found
    first = _book.first
    if _read_in_what_is_over() or _reads_here() or not _begin():
        return await sync_to_async(current)()
    return _put_in_force(first, await first.await_(_patience()))


def pin(snapshot: Snapshot | None) -> Snapshot | None:
    """Put these rules in force in place of those of settings and database; None ends it.

    Returns what was pinned before. Edits made meanwhile are in force afterwards.
    """
    before, _book.pinned = _book.pinned, snapshot
    old, new = before or _book.snapshot, snapshot or _book.snapshot
    if new is not None and new is not old:
        rules_changed.send_robust(sender=Snapshot, old=old, new=new)
    return before


def refresh(seen: str | None = None) -> Snapshot:
    """Read settings and database again and put the result in force.

    When the database fails, the rules in force stay; when none are, those of settings hold. What was read inside
    a transaction is in force until it ends, and then read again, as it may have been rolled back.
    ``seen`` is the version that was in Redis before the reading.
    """
    number, began = next(_readings), monotonic()
    reading = sources.read(_book.database)
    _book.took = monotonic() - began
    new = None if _is_known(reading) else _made(reading)  # outside the lock, as it takes long for many rules
    with _book.lock:
        old = _book.snapshot
        if number > _book.newest:  # else a later reading is in force already
            _install(reading, new, number, seen)
        new = _book.snapshot
    if new is None:
        return current()
    _book.first.know(new)
    if new is not old:
        rules_changed.send_robust(sender=Snapshot, old=old, new=new)
    return new


def changed() -> None:
    """An edit was committed: put it in force here and tell the other processes. Never raises."""
    try:
        # Publish first, then read: what another process commits after our reading, it publishes after our version,
        # so this process learns of it.
        refresh(publish())
    except Exception:
        logger.exception("edited rules could not be read: the rules in force stay until the next poll reads them")


def poll(store: AnyStore) -> None:
    """Learn of edits by other processes. Cheap unless there is one; never raises StoreError.

    The rules are read in a separate thread, so that a database that hangs holds up nothing else. Without a Redis,
    which has their version, each poll reads them, over a connection that the thread keeps.
    """
    if not conf().DATABASE_RULES or sources.is_private():
        return
    there = fetch(store)
    age = monotonic() - _book.read_at
    rest = min(_book.took * RESTS, LONGEST_REST)
    if there is None and _book.is_committed and rest > conf().RULES_POLL and age < rest:
        return
    stale = age >= conf().RULES_REREAD
    if there is None or there != _book.seen or stale or not _book.is_committed:
        _book.reader.ask(there)


def _reads_here() -> bool:
    """True where another thread would not see the same database: in tests, and of a database in memory."""
    return detect_test_run.has_begun() or (sources.are_in_database() and sources.is_private())


def _begin() -> bool:
    """Have the thread read, unless it does so already; False where no thread can be started."""
    try:
        return _book.reader.ask(None)
    except RuntimeError:
        return False


def _patience() -> float | None:
    return None if conf().RULES_WAIT else conf().DEADLINE


def _put_in_force(first: FirstReading, found: Snapshot) -> Snapshot:
    """Adopt what was waited for: the rules of settings where the database has not answered yet."""
    with _book.lock:
        is_late = _book.snapshot is None and _book.first is first
        if is_late:
            _book.snapshot = found
    if is_late:
        late = "the database has not answered within %g s (DEADLINE): only the rules in settings hold until it does"
        logger.warning(late, conf().DEADLINE)
    return _book.pinned or _book.snapshot or found


def _read_in_what_is_over() -> bool:
    """True when the rules were read inside a transaction that has ended, and may have been rolled back."""
    transaction = _book.open_in
    return transaction is not None and not transaction.lasts()


def _is_known(reading: Reading) -> bool:
    """True where the reading changes nothing: the database failed or is the same, and settings never change."""
    return _book.snapshot is not None and (reading.failure is not None or reading.database is _book.database)


def _install(reading: Reading, new: Snapshot | None, number: int, seen: str | None) -> None:
    _report(reading)
    _book.newest, _book.read_at = number, monotonic()
    if reading.failure is None:
        _book.is_committed, _book.open_in = reading.open_in is None, reading.open_in
        _book.seen = seen or _book.seen
    if _is_known(reading):
        return
    _book.database = reading.database
    new = new or _made(reading)
    # Equal rules stay the same object, so that what is derived from it stays valid.
    if _book.snapshot is None or _book.snapshot.version != new.version:
        _book.snapshot = new


def _made(reading: Reading) -> Snapshot:
    rules = [rule.as_shadow() for rule in reading.rules] if conf().SHADOW else reading.rules
    return Snapshot(rules, overrides=reading.database.overrides)


def _report(reading: Reading) -> None:
    """Log each new fault once."""
    if reading.failure is not None:
        if not _book.failing:
            kept = "the rules in force stay" if _book.database is not NO_RULES else "only the rules in settings hold"
            why = sources.advice(reading.failure)
            logger.warning("rules cannot be read from the database: %s; %s", why, kept)
        _book.failing = True
        return
    for source, name, message in sorted(reading.faults - _book.faults):
        logger.error("rule %r from %s is skipped, it limits nothing until corrected: %s", name, source, message)
    for number, message in sorted(reading.unfit - _book.unfit):
        logger.error("override %d is skipped, correct it: %s", number, message)
    _book.failing, _book.faults, _book.unfit = False, reading.faults, reading.unfit


@receiver(setting_changed, dispatch_uid="django_throttle.rulebook")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "DATABASES", "INSTALLED_APPS"):
        with _book.lock:
            _book.snapshot, _book.seen, _book.is_committed, _book.newest = None, None, False, next(_readings)
            _book.faults, _book.unfit, _book.failing, _book.open_in = frozenset(), frozenset(), False, None
            _book.database, _book.first = NO_RULES, FirstReading()
        _book.reader.end()
        _book.reader = Reader(_reread)


def _after_fork() -> None:
    # The threads that held the lock, or were reading, do not exist in this process.
    _book.lock, _book.reader, _book.first = Lock(), Reader(_reread), FirstReading()


@atexit.register
def _at_exit() -> None:
    _book.reader.end()


os.register_at_fork(after_in_child=_after_fork)


# By connection: whether the edits since its last commit of any were announced to the others.
_announced: Final[WeakKeyDictionary[Any, Event]] = WeakKeyDictionary()


def connect() -> None:
    """Listen to saves and deletions of rules and overrides."""
    for model in ("ThrottleRule", "ThrottleOverride"):
        for signal in (post_save, post_delete):
            signal.connect(_edited, sender=f"django_throttle.{model}", dispatch_uid="django_throttle.edits")


def announce(alias: str) -> None:
    """Put edits in force when the present transaction is committed, once however often this is called in it."""
    connection = transaction.get_connection(alias)
    announced = _announced.get(connection)
    if announced is None or announced.is_set():
        announced = _announced[connection] = Event()
    transaction.on_commit(partial(_announce, announced), using=alias)


def _announce(announced: Event) -> None:
    if not announced.is_set():
        announced.set()
        changed()


def _edited(*, using: str, **_: object) -> None:
    announce(using)
