"""The rules in force in this process, and how it learns of new ones."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from threading import Event, Lock
from time import monotonic
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.models.signals import post_delete, post_save
from django.dispatch import Signal, receiver

from django_throttle import detect_test_run
from django_throttle.conf import conf
from django_throttle.core import Override
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.local.shared_clock import shared_clock
from django_throttle.rulebook import migrate_counts, sources
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.rulebook.sources import NOTHING_READ, Reader, Reading
from django_throttle.signals import overrides_ended, rules_changed
from django_throttle.stores import AnyStore, get_store

logger = logging.getLogger("django_throttle")

# Sent in the thread that reads the rules whenever the database has answered. For the history, which may be behind.
rules_read: Final = Signal()

# A version that Redis has yet to be told: when the edit was committed, in epoch seconds, a hyphen, and chance.
_unsent: str | None = None


def fetch(store: AnyStore) -> str | None:
    """The version in Redis, which gets a new one if it has none, or an edit was committed here.

    None without a Redis, or when it does not answer.
    """
    global _unsent
    if not store.is_remote:
        return None
    mine = _unsent
    try:
        version, now = store.rules_version(mine or f"-{secrets.token_hex(8)}", publish=mine is not None)
    except StoreError as error:
        logger.debug("the version of the rules cannot be read from Redis: %s", error)
        return None
    if store.clock is None:
        shared_clock.learn(now)
    with _book.lock:
        if _unsent == mine:  # else another edit was committed meanwhile
            _unsent = None
    return version


def learn_time() -> None:
    """Ask the store for its time, which a process that has decided nothing yet does not know. Raises nothing."""
    with suppress(InvalidSetting):
        fetch(get_store())


POLL_SECONDS: Final = 0.5  # interval of the polls in each process
REREAD_SECONDS: Final = 30.0  # age at which a poll reads the rules even if their version is known
# Without a Redis each poll reads all rows; where that takes long, less often, so that it takes a fortieth of the time.
RESTS: Final = 40
LONGEST_REST: Final = 0.6  # seconds; with the next poll an edit is in force within a second and a half
LATE: Final = (
    "the database has not answered within %g s (DEADLINE): only the rules in settings hold until it does, and no "
    "overrides; see what holds it up"
)
# Seconds between two looks of an event loop at whether the rules are read; callers that wait long look less often.
SHORTEST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.1


def refresh(seen: str | None = None) -> Snapshot:
    """Read settings and database again and put the result in force.

    When the database fails, the rules in force stay; when none are, those of settings hold. What was read inside
    a transaction is in force until it ends, and then read again, as it may have been rolled back.
    ``seen`` is the version that was in Redis before the reading.
    """
    book, number, began = _book, next(_readings), monotonic()
    with book.lock:
        known, before = book.snapshot, book.reading
    reading = sources.read(before)
    book.took = monotonic() - began
    is_known = known is not None and (reading.failure is not None or reading.is_as(before))
    new = known if known is not None and is_known else _made(reading)  # takes long for many rules, so without the lock
    with book.lock:
        old = book.snapshot
        if number > book.newest:  # else a later reading is in force already
            book.newest = number
            _install(book, reading, new, seen)
        new = book.snapshot or new
    if old is not None and new is not old:
        migrate_counts.note(old.by_name, new.rules)
    _tell(old, new)
    return new


def end_overrides() -> None:
    """Put the overrides that have run out by their own time out of force, which is felt as an edit is.

    Decisions do not wait for it: each compares an override's end with the clock. Without a query.
    """
    book = _book
    with book.lock:
        old = book.pinned or book.snapshot
        if old is None:
            return
        new, ended = old.without_ended()
        if not ended:
            book.judged_at = old.overrides.now()
            return
        if book.pinned is None:
            book.snapshot, book.put_at = new, PutInForce(shared_clock.now(), None)
        else:
            book.pinned = new
        book.ended += ended
    _tell(old, new)


def _read_aside(seen: str | None) -> None:
    """Read the rules in the thread that does, and tell there what has ended: listeners may ask the database."""
    book = _book
    with book.lock:
        ended, book.ended = book.ended, ()
    if _is_due(book):
        sources.promote_due()
    refresh(seen)
    if not book.failing:
        rules_read.send_robust(sender=Snapshot)
    if book.is_committed and not book.knows_past:
        _recall(book)
    if ended:
        overrides_ended.send_robust(sender=Snapshot, overrides=ended)


def _recall(book: _Book) -> None:
    """Learn of edits before this process began, once its rules are in force; those of settings are told by then."""
    try:
        migrate_counts.recall(sources.past_edits(migrate_counts.EDIT_SECONDS))
        book.knows_past = True
    except Error as error:
        logger.info("edits before this process began cannot be read, the next reading tries again: %s", error)


def _tell(old: Snapshot | None, new: Snapshot | None) -> None:
    """Tell listeners what was in force when they were last told, and what is: an override may have ended since."""
    if new is None or new is old:
        return
    before, _book.judged_at = _book.judged_at, new.overrides.now() if new.overrides else 0.0
    rules_changed.send_robust(sender=Snapshot, old=old and old.as_of(before), new=new)


class PutInForce(NamedTuple):
    """When the rules in force were put in force in this process, in epoch seconds, and how long after their edit.

    ``after`` is None where that is unknown: of the first rules of a process, and without a Redis.
    """

    at: float
    after: float | None


UNKNOWN: Final = PutInForce(0.0, None)


@dataclass(slots=True)
class _Book:
    """The rules of this process under these settings, and how they were read.

    ``is_committed`` is False until the database was read outside a transaction; ``open_in`` is a weak reference to the
    connection in whose open transaction they were read. ``judged_at`` is when listeners were last told of what is in
    force, or nothing had ended of that, in epoch seconds.
    """

    pinned: Snapshot | None = None  # by a test, in place of the snapshot
    snapshot: Snapshot | None = None
    is_committed: bool = False
    knows_past: bool = False  # the edits before this process began
    open_in: Callable[[], BaseDatabaseWrapper | None] | None = None
    seen: str | None = None  # the version in Redis before the last reading
    read_at: float = 0.0
    confirmed_at: float = 0.0  # when database or Redis last said that these are the newest, on the monotonic clock
    put_at: PutInForce = UNKNOWN
    judged_at: float = 0.0
    ended: tuple[Override, ...] = ()  # by their own time, of which nobody has been told
    took: float = 0.0  # seconds that the last reading took
    newest: int = -1  # the number of the reading that the snapshot is from
    reading: Reading = NOTHING_READ  # the last one that did not fail
    faults: frozenset[tuple[str, str, str]] = frozenset()
    unfit: frozenset[tuple[int, str]] = frozenset()
    failing: bool = False
    failing_sources: frozenset[str] = frozenset()
    reader: Reader = field(default_factory=lambda: Reader(_read_aside))
    lock: Lock = field(default_factory=Lock)


_book = _Book()
_readings: Final = count()


def current() -> Snapshot:
    """The rules in force. The first calls in a process wait until they are read, for DEADLINE at most.

    After that the rules of settings hold until the database has answered.
    """
    if (found := loaded()) is not None:
        return found
    if _is_read_elsewhere():
        _book.reader.wait(conf().DEADLINE)
        return loaded() or _without_database()
    _book.open_in = None  # before the reading, so that it is tried only once
    return refresh()


def loaded() -> Snapshot | None:
    """The rules in force if they are known without reading; else None."""
    if _book.open_in is None or not _is_over(_book.open_in()):  # asked for each frame of a socket
        return _book.pinned or _book.snapshot
    return _book.pinned


async def acurrent() -> Snapshot:
    """The rules in force, without blocking the event loop, or a thread of its pool, for the first reading."""
    if (found := loaded()) is not None:
        return found
    if not _is_read_elsewhere():
        return await sync_to_async(current)()
    ends, pause = monotonic() + conf().DEADLINE, SHORTEST_PAUSE
    # An event would need the loop of each caller; this happens once in a process.
    while not _book.reader.wait(0) and (left := ends - monotonic()) > 0:
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)
    return loaded() or _without_database()


def pin(snapshot: Snapshot | None) -> Snapshot | None:
    """Put these rules in force in place of those of settings and database; None ends it.

    Returns what was pinned before. Edits made meanwhile are in force afterwards.
    """
    before, _book.pinned = _book.pinned, snapshot
    _tell(before or _book.snapshot, snapshot or _book.snapshot)
    return before


def changed() -> None:
    """An edit was committed: put it in force here and tell the other processes. Never raises."""
    global _unsent
    try:
        with _book.lock:
            _unsent = f"{shared_clock.now():.3f}-{secrets.token_hex(8)}"
        # Publish first, then read: what another process commits after our reading, it publishes after our version,
        # so this process learns of it.
        refresh(fetch(get_store()))
    except Exception:
        logger.exception("edited rules could not be read: the rules in force stay until the next poll reads them")


def poll(store: AnyStore) -> None:
    """Learn of edits by other processes, and of overrides that end. Cheap unless there are any; raises no StoreError.

    The rules are read in a separate thread, so that a database that hangs holds up nothing else. Without a Redis,
    which has their version, each poll reads them, over a connection that the thread keeps.
    """
    end_overrides()
    if not conf().DATABASE_RULES or sources.is_private():
        return
    there = fetch(store)
    age = monotonic() - _book.read_at
    rest = min(_book.took * RESTS, LONGEST_REST)
    if there is None and _book.is_committed and rest > POLL_SECONDS and age < rest:
        return
    if there is not None and there == _book.seen and _book.is_committed:
        _book.confirmed_at = monotonic()
    stale = age >= REREAD_SECONDS
    if there is None or there != _book.seen or stale or not _book.is_committed or _book.ended or _is_due(_book):
        _book.reader.ask(there)


def put_in_force() -> PutInForce:
    """When the rules in force in this process were put in force."""
    return _book.put_at


def unconfirmed() -> float:
    """The seconds since this process last knew its rules to be the newest; 0.0 where no other process can edit them."""
    book = _book
    if book.snapshot is None or not conf().DATABASE_RULES or sources.is_private():
        return 0.0
    return monotonic() - book.confirmed_at


def _is_due(book: _Book) -> bool:
    """True when a candidate's time to replace its rule has come."""
    starts = [one.starts_at for one in book.snapshot.candidates if one.starts_at] if book.snapshot else ()
    return bool(starts) and book.snapshot is not None and min(starts) <= book.snapshot.overrides.now()


def _is_read_elsewhere() -> bool:
    """Have the thread make the first reading, unless it does so already.

    False where no thread can be started or would see the same database (in tests, and of a database in memory), and
    for rules that were read inside a transaction that has ended.
    """
    private = detect_test_run.has_begun() or (sources.are_in_database() and sources.is_private())
    if private or _book.snapshot is not None:
        return False
    try:
        return _book.reader.ask(None)
    except RuntimeError:
        return False


def _without_database() -> Snapshot:
    """Put the rules of settings in force, as the database has not answered; its own if it just has."""
    reading = Reading(sources.from_settings())
    snapshot = _made(reading)
    with _book.lock:
        if _book.snapshot is None:
            _book.snapshot, _book.confirmed_at = snapshot, monotonic()
            _book.put_at = PutInForce(shared_clock.now(), None)
            _report(_book, reading)
            logger.warning(LATE, conf().DEADLINE)
        return _book.snapshot


def _is_over(connection: BaseDatabaseWrapper | None) -> bool:
    """True when the transaction in which the rules were read has ended, and may have been rolled back."""
    return connection is None or not connection.in_atomic_block


def _install(book: _Book, reading: Reading, new: Snapshot, seen: str | None) -> None:
    _report(book, reading)
    book.read_at = monotonic()
    after = _since_edit(book, seen)
    if reading.failure is None:
        book.confirmed_at = book.read_at
        book.is_committed, book.open_in, book.reading = reading.open_in is None, reading.open_in, reading
        book.seen = seen or book.seen
    # Equal rules stay the same object, so that what is derived from it stays valid.
    if book.snapshot is None or (reading.failure is None and book.snapshot.version != new.version):
        book.snapshot, book.put_at = new, PutInForce(shared_clock.now(), after)


def _since_edit(book: _Book, seen: str | None) -> float | None:
    """The seconds since the edit that this version is of, if it is new to this process, which had another one."""
    if book.snapshot is None or book.seen is None or seen is None or seen == book.seen:
        return None
    edited = seen.partition("-")[0]
    return max(0.0, shared_clock.now() - float(edited)) if edited.replace(".", "", 1).isdecimal() else None


def _made(reading: Reading) -> Snapshot:
    rules, candidates = reading.rules, reading.candidates
    if conf().SHADOW:
        rules = tuple([rule.as_shadow() for rule in rules])
        candidates = tuple([replace(one, share=0.0) for one in candidates])
    return Snapshot(rules, overrides=reading.database.overrides, candidates=candidates)


def _report(book: _Book, reading: Reading) -> None:
    """Log each new fault once."""
    if reading.failure is not None:
        if not book.failing:
            kept = "the rules in force stay" if book.reading is not NOTHING_READ else "only the rules in settings hold"
            why = sources.advice(reading.failure)
            logger.warning("rules cannot be read from the database: %s; %s", why, kept)
        book.failing = True
        return
    for source in sorted(reading.failures.keys() - book.failing_sources):
        why = sources.advice(reading.failures[source])
        logger.warning("rules cannot be read from %s: %s; those that it had before stay in force", source, why)
    for source, name, message in sorted(reading.faults - book.faults):
        logger.error("rule %r from %s is skipped, it limits nothing until corrected: %s", name, source, message)
    unfit = frozenset(reading.database.unfit.items())
    for number, message in sorted(unfit - book.unfit):
        logger.error("override %d is skipped, correct it: %s", number, message)
    book.failing, book.faults, book.unfit = False, reading.faults, unfit
    book.failing_sources = frozenset(reading.failures)


@receiver(setting_changed, dispatch_uid="django_throttle.rulebook")
def _forget(*, setting: str, **_: object) -> None:
    global _book
    if setting in ("DJANGO_THROTTLE", "DATABASES", "INSTALLED_APPS"):
        _book.reader.end()
        _book = _Book(_book.pinned)
        migrate_counts.forget()


def _after_fork() -> None:
    # The threads that held the lock, or were reading, do not exist in this process.
    _book.lock, _book.reader = Lock(), Reader(_read_aside)


@atexit.register
def _at_exit() -> None:
    _book.reader.end()


os.register_at_fork(after_in_child=_after_fork)


# By connection: whether the edits since its last commit of any were announced to the others.
_announced: Final[WeakKeyDictionary[BaseDatabaseWrapper, Event]] = WeakKeyDictionary()


def connect() -> None:
    """Listen to saves and deletions of rules and overrides."""
    for model in ("django_throttle.ThrottleRule", "django_throttle.ThrottleOverride"):
        announce_edits(model)


def announce_edits(model: type[Model] | str) -> None:
    """Have every process read the rules again when a row of this model is saved or deleted, once that is committed.

    ``model`` is a class, or "app_label.ModelName". Call it in the method ``ready`` of an app config. Edits in bulk send
    no signals: call ``changed`` after those.
    """
    for signal in (post_save, post_delete):
        signal.connect(announce, sender=model, dispatch_uid="django_throttle.edits")


def announce(*, using: str, **_: object) -> None:
    """Put edits in force when the present transaction is committed, once however often this is called in it."""
    connection = transaction.get_connection(using)
    announced = _announced.get(connection)
    if announced is None or announced.is_set():
        announced = _announced[connection] = Event()
    transaction.on_commit(partial(_announce, announced), using=using)


def _announce(announced: Event) -> None:
    if not announced.is_set():
        announced.set()
        changed()
