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
from threading import Lock
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from django_throttle import testrun
from django_throttle.conf import conf
from django_throttle.exceptions import StoreError
from django_throttle.rulebook import sources
from django_throttle.rulebook.reader import NOTHING, Found, Reader, Reading, Transaction
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.signals import rules_changed
from django_throttle.stores import AnyStore, get_store

logger = logging.getLogger("django_throttle")

_unsent: str | None = None


def publish() -> str | None:
    """Put a new version into Redis and return it; None where there is no Redis, or it does not answer now.

    In the latter case the next ``fetch`` sends it.
    """
    global _unsent
    store = get_store()
    if not store.is_remote:
        return None
    _unsent = secrets.token_hex(8)
    return fetch(store)


def fetch(store: AnyStore) -> str | None:
    """The version in Redis, which makes one up where it has none; None where nobody can say."""
    global _unsent
    if not store.is_remote:
        return None
    mine = _unsent
    try:
        version = store.rules_version(mine or secrets.token_hex(8), publish=mine is not None)
    except StoreError as error:
        logger.debug("the version of the rules is not known: %s", error)
        return None
    if _unsent == mine:
        _unsent = None
    return version


class First:
    """What the thread that reads knows so far: the rules of settings, and then all of them.

    The moment is ``seconds`` after the first call of ``wait`` or ``await_``; there is none where that one gave None.
    Both return all rules, or after it those of settings, and raise what the reading raises.
    """

    def __init__(self) -> None:
        self._settings, self._all = _future(), _future()
        self._ends: float | None = None

    def have(self, settings: Snapshot) -> None:
        """The rules of settings, while the database is asked for the others."""
        _resolve(self._settings, settings)

    def know(self, rules: Snapshot) -> None:
        """All of them."""
        _resolve(self._all, rules)
        _resolve(self._settings, rules)

    def fail(self, error: BaseException) -> None:
        """There are none, because of this."""
        for future in (self._all, self._settings):
            if not future.done():
                future.set_exception(error)

    def wait(self, seconds: float | None) -> Snapshot:
        """Wait for the rules."""
        wait([self._all], self._left(seconds))
        return (self._all if self._all.done() else self._settings).result()

    async def await_(self, seconds: float | None) -> Snapshot:
        """Wait without blocking the event loop, nor for any thread that others may keep busy."""
        waiting = asyncio.wrap_future(self._all)
        await asyncio.wait([waiting], timeout=self._left(seconds))
        if waiting.done():
            return waiting.result()
        waiting.cancel()  # so that it is told nothing when the loop is closed by then
        return await asyncio.wrap_future(self._settings)

    def _left(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        if self._ends is None:
            self._ends = monotonic() + seconds
        return max(0.0, self._ends - monotonic())


def _future() -> Future[Snapshot]:
    future: Future[Snapshot] = Future()
    future.set_running_or_notify_cancel()  # so that a caller who is cancelled takes it from nobody else
    return future


def _resolve(future: Future[Snapshot], found: Snapshot) -> None:
    if not future.done():
        future.set_result(found)


# Where each poll reads, very many rows are read somewhat less often: a fortieth of the time goes into that.
RESTS: Final = 40
LONGEST_REST: Final = 0.6  # with the next poll after it, an edit is in force within a second and a half


def _reread(seen: str | None) -> None:
    """What the thread does that reads: a database may take its time, so the rules of settings are ready before."""
    first = _book.first
    try:
        if _book.snapshot is None and sources.are_in_database():
            first.have(_without_database())
        refresh(seen)
    except BaseException as error:
        _book.first = First()  # whoever asks next tries again
        first.fail(error)
        raise


@dataclass(slots=True)
class _Book:
    """What this process knows of the rules.

    ``settled`` is False until the database was read, and well; ``open_in`` is the transaction that it was read
    in, as long as nobody has read again since.
    """

    snapshot: Snapshot | None = None
    pinned: Snapshot | None = None  # what holds in its place as long as a test wants it to
    settled: bool = False
    open_in: Transaction | None = None
    seen: str | None = None  # the version in Redis that the snapshot is at least as new as
    read_at: float = 0.0
    took: float = 0.0  # seconds, the last reading
    newest: int = -1  # the reading that the snapshot is from
    database: Found = NOTHING  # what was in the database then
    faults: frozenset[tuple[str, str, str]] = frozenset()
    unfit: frozenset[tuple[int, str]] = frozenset()
    failing: bool = False
    reader: Reader = field(default_factory=lambda: Reader(_reread))
    first: First = field(default_factory=First)
    lock: Lock = field(default_factory=Lock)


_book: Final = _Book()
_readings: Final = count()


def current() -> Snapshot:
    """The rules in force. The first calls in a process wait until they are read, for DEADLINE at most.

    From then on those of settings are in force until the database has answered; with RULES_WAIT they wait for that.
    """
    if _book.pinned is not None:
        return _book.pinned
    if _read_in_what_is_over():
        # Before the reading, so that it is tried once, however it ends.
        _book.open_in = None
        return refresh()
    if _book.snapshot is not None:
        return _book.snapshot
    first = _book.first
    return refresh() if _reads_here() or not _begin() else _put_in_force(first, first.wait(_patience()))


def present() -> Snapshot | None:
    """The same where they are at hand; None where they have to be read."""
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
    """Put these rules in force, whatever settings and database say, until others are pinned; None ends it.

    Returns what was pinned before. What is read or edited meanwhile is in force afterwards.
    """
    before, _book.pinned = _book.pinned, snapshot
    old, new = before or _book.snapshot, snapshot or _book.snapshot
    if new is not None and new is not old:
        rules_changed.send_robust(sender=Snapshot, old=old, new=new)
    return before


def refresh(seen: str | None = None) -> Snapshot:
    """Read settings and database again and put the result in force.

    When the database fails, the rules in force stay; when none are, those of settings hold. What was read inside
    a transaction is in force while it lasts, and read again when it has ended, lest it was rolled back.
    ``seen`` is the version that was in Redis before the reading.
    """
    number, began = next(_readings), monotonic()
    reading = sources.read(_book.database)
    _book.took = monotonic() - began
    new = None if _is_known(reading) else _made(reading)  # of very many rules it takes long, so nobody waits for it
    with _book.lock:
        old = _book.snapshot
        if number > _book.newest:  # else a reading that began later is in force already
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
        # Told first and read afterwards: whatever another process commits after our reading, it tells after
        # our telling, so that we hear of it.
        refresh(publish())
    except Exception:
        logger.exception("the edited rules could not be put in force")


def poll(store: AnyStore) -> None:
    """Learn of edits made elsewhere. Cheap unless there is one; never raises StoreError.

    The rules are read in a thread of their own, so that a database that hangs holds up nothing else. Where no
    Redis says whether they changed, each poll reads them, over a connection that the thread keeps.
    """
    if not conf().DATABASE_RULES or sources.is_private():
        return
    there = fetch(store)
    age = monotonic() - _book.read_at
    rest = min(_book.took * RESTS, LONGEST_REST)
    if there is None and _book.settled and rest > conf().RULES_POLL and age < rest:
        return
    stale = age >= conf().RULES_REREAD
    if there is None or there != _book.seen or stale or not _book.settled:
        _book.reader.ask(there)


def _reads_here() -> bool:
    """True where no other thread sees what the calling one does: in tests, and of a database in memory."""
    return testrun.has_begun() or (sources.are_in_database() and sources.is_private())


def _begin() -> bool:
    """Have the thread read, unless it does so already; False where there is none."""
    try:
        return _book.reader.ask(None)
    except RuntimeError:  # the system gives none
        return False


def _patience() -> float | None:
    return None if conf().RULES_WAIT else conf().DEADLINE


def _put_in_force(first: First, found: Snapshot) -> Snapshot:
    """What was waited for; where the database is late, the rules of settings are in force until it answers."""
    with _book.lock:
        is_late = _book.snapshot is None and _book.first is first
        if is_late:
            _book.snapshot = found
    if is_late:
        late = "the database has not said its rules in %g s (DEADLINE): only those in settings hold until it does"
        logger.warning(late, conf().DEADLINE)
    return _book.pinned or _book.snapshot or found


def _read_in_what_is_over() -> bool:
    """True when the rules were read inside a transaction that has ended, and may have been rolled back."""
    transaction = _book.open_in
    return transaction is not None and not transaction.lasts()


def _is_known(reading: Reading) -> bool:
    """True where it changes nothing that is in force: the database failed, or says the same; settings do not change."""
    return _book.snapshot is not None and (reading.failure is not None or reading.database is _book.database)


def _install(reading: Reading, new: Snapshot | None, number: int, seen: str | None) -> None:
    _report(reading)
    _book.newest, _book.read_at = number, monotonic()
    if reading.failure is None:
        _book.settled, _book.open_in = reading.settled, reading.open_in
        _book.seen = seen or _book.seen
    if _is_known(reading):
        return
    _book.database = reading.database
    new = new or _made(reading)
    # The same rules are the same object, so that what others derived from it stays good.
    if _book.snapshot is None or _book.snapshot.version != new.version:
        _book.snapshot = new


def _made(reading: Reading) -> Snapshot:
    rules = [rule.as_shadow() for rule in reading.rules] if conf().SHADOW else reading.rules
    return Snapshot(rules, overrides=reading.overrides)


def _without_database() -> Snapshot:
    reading = Reading(sources.from_settings())
    with _book.lock:
        _report(reading)
    return _made(reading)


def _report(reading: Reading) -> None:
    """One line for each new thing that is wrong, not for each time it is found."""
    if reading.failure is not None:
        if not _book.failing:
            kept = "the rules in force stay" if _book.database is not NOTHING else "only the rules in settings hold"
            why = sources.advice(reading.failure)
            logger.warning("rules cannot be read from the database: %s; %s", why, kept)
        _book.failing = True
        return
    for source, name, message in sorted(reading.faults - _book.faults):
        logger.error("rule %r from %s is skipped: %s", name, source, message)
    for number, message in sorted(reading.unfit - _book.unfit):
        logger.error("override %d is skipped: %s", number, message)
    _book.failing, _book.faults, _book.unfit = False, reading.faults, reading.unfit


@receiver(setting_changed, dispatch_uid="django_throttle.rulebook")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("DJANGO_THROTTLE", "DATABASES", "INSTALLED_APPS"):
        with _book.lock:
            _book.snapshot, _book.seen, _book.settled, _book.newest = None, None, False, next(_readings)
            _book.faults, _book.unfit, _book.failing, _book.open_in = frozenset(), frozenset(), False, None
            _book.database, _book.first = NOTHING, First()
        _book.reader.end()
        _book.reader = Reader(_reread)


def _after_fork() -> None:
    # Whoever held the lock, or was reading, does not exist in this process.
    _book.lock, _book.reader, _book.first = Lock(), Reader(_reread), First()


def _at_exit() -> None:
    _book.reader.end()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class _Batch:
    """The edits of one connection since the last commit that had any."""

    __slots__ = ("__weakref__", "told")

    def __init__(self) -> None:
        self.told = False


_batches: Final[WeakKeyDictionary[Any, _Batch]] = WeakKeyDictionary()


def connect() -> None:
    """Listen to saves and deletions of rules and overrides."""
    for model in ("ThrottleRule", "ThrottleOverride"):
        for signal in (post_save, post_delete):
            signal.connect(_edited, sender=f"django_throttle.{model}", dispatch_uid="django_throttle.edits")


def announce(alias: str) -> None:
    """Tell the rulebook when the present transaction is committed, however often this is called in it."""
    connection = transaction.get_connection(alias)
    batch = _batches.get(connection)
    if batch is None or batch.told:
        batch = _batches[connection] = _Batch()
    transaction.on_commit(partial(_tell, batch), using=alias)


def _tell(batch: _Batch) -> None:
    if not batch.told:
        batch.told = True
        changed()


def _edited(*, using: str, **_: object) -> None:
    announce(using)
