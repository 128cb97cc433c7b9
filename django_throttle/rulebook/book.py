"""The snapshot that this process goes by, and how it learns of a new one.

``current`` is all that the hot path calls: once loaded, an attribute. The first time a thread reads the rules, for all
who ask, and they wait for a database no longer than for a decision. Edits made here are put in force by ``changed``,
on commit; those made elsewhere by ``poll``, which the background thread calls.
"""

from __future__ import annotations

import atexit
import logging
import os
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from time import monotonic
from typing import Final

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_throttle import testrun
from django_throttle.conf import conf
from django_throttle.rulebook import sources, version
from django_throttle.rulebook.first import First
from django_throttle.rulebook.reader import Reader
from django_throttle.rulebook.reading import NOTHING, Found, Reading, Transaction
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.signals import rules_changed
from django_throttle.stores.base import Store

logger = logging.getLogger("django_throttle")

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
    return _book.pinned or (None if _read_in_what_is_over() else _book.snapshot)


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
        refresh(version.publish())
    except Exception:
        logger.exception("the edited rules could not be put in force")


def poll(store: Store) -> None:
    """Learn of edits made elsewhere. Cheap unless there is one; never raises StoreError.

    The rules are read in a thread of their own, so that a database that hangs holds up nothing else. Where no
    Redis says whether they changed, each poll reads them, over a connection that the thread keeps.
    """
    if not conf().DATABASE_RULES or sources.is_private():
        return
    there = version.fetch(store)
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
