"""Current rules of this process, read again after edits by any process."""

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

#: Sent in the thread that reads the rules, after each successful reading. The history writes missing lines then.
rules_read: Final = Signal()

# Version of an edit that is not published yet: the time of the edit in seconds since 1970, a hyphen, random text.
_unpublished: str | None = None


def fetch(store: AnyStore) -> str | None:
    """Publish the version of an edit made here. Return the version of the rules in Redis.

    Give Redis a new version if it has none. Return None without a Redis, or if it does not answer.
    """
    global _unpublished
    if not store.is_remote:
        return None
    edit = _unpublished
    try:
        version, now = store.rules_version(edit or f"-{secrets.token_hex(8)}", publish=edit is not None)
    except StoreError as error:
        logger.debug("the version of the rules cannot be read from Redis: %s", error)
        return None
    if store.clock is None:
        shared_clock.learn(now)
    with _state.lock:
        if _unpublished == edit:  # else another edit was committed meanwhile
            _unpublished = None
    return version


def learn_time() -> None:
    """Synchronise the shared clock with the store, in a process without decisions yet. Raise nothing."""
    with suppress(InvalidSetting):
        fetch(get_store())


POLL_SECONDS: Final = 0.5  # interval of the polls in each process
REREAD_SECONDS: Final = 30.0  # age at which a poll reads the rules even if the version is unchanged
# Without a Redis each poll reads all rows. A slow reading is followed by a pause of this many times its duration.
PAUSE_FACTOR: Final = 40
MAX_PAUSE_SECONDS: Final = 0.6  # with the next poll, an edit is in force within 1.5 s
DATABASE_LATE: Final = (
    "the database has not answered within %g s (DEADLINE): only the rules in settings hold until it does, and no "
    "overrides; see what holds it up"
)
# Interval at which an event loop checks if the first reading has ended. It doubles from the first to the second.
MIN_CHECK_SECONDS: Final = 0.002
MAX_CHECK_SECONDS: Final = 0.1


def refresh(version: str | None = None) -> Snapshot:
    """Read settings and database again. Make the result the current rules, and return them.

    If the database fails, keep the current rules, or use the rules of settings at first. Rules that were read inside a
    transaction are read again after it, because it may be rolled back. ``version`` was in Redis before the reading.
    """
    state, number, started_at = _state, next(_reading_numbers), monotonic()
    with state.lock:
        former, last_reading = state.snapshot, state.reading
    reading = sources.read(last_reading)
    state.reading_seconds = monotonic() - started_at
    if former is not None and (reading.failure is not None or reading.equals(last_reading)):
        new = former
    else:
        new = _snapshot_of(reading)  # without the lock, because it takes long for many rules
    with state.lock:
        old = state.snapshot
        if number > state.reading_number:  # else a later reading has ended before
            state.reading_number = number
            _install(state, reading, new, version)
        new = state.snapshot or new
    if old is not None and new is not old:
        migrate_counts.note(old.by_name, new.rules)
    _announce_change(old, new)
    return new


def end_overrides() -> None:
    """Remove overrides that have ended from the current rules, as an edit would. Do not query the database.

    Decisions do not depend on this: each compares the end of an override with the clock.
    """
    state = _state
    with state.lock:
        old = state.pinned or state.snapshot
        if old is None:
            return
        new, ended = old.without_ended()
        if not ended:
            state.announced_at = old.overrides.now()
            return
        if state.pinned is None:
            state.snapshot, state.effective_since = new, EffectiveSince(shared_clock.now(), None)
        else:
            state.pinned = new
        state.ended += ended
    _announce_change(old, new)


def _read_in_thread(version: str | None) -> None:
    """Read the rules in the reader's thread. Send signals there, because receivers may query the database."""
    state = _state
    with state.lock:
        ended, state.ended = state.ended, ()
    if _is_promotion_due(state):
        sources.promote_due()
    refresh(version)
    if not state.is_failing:
        rules_read.send_robust(sender=Snapshot)
    if state.is_committed and not state.has_recalled:
        _recall(state)
    if ended:
        overrides_ended.send_robust(sender=Snapshot, overrides=ended)


def _recall(state: _ProcessRules) -> None:
    """Read the edits made before this process started. The history has those of settings by then."""
    try:
        migrate_counts.recall(sources.past_edits(migrate_counts.EDIT_SECONDS))
        state.has_recalled = True
    except Error as error:
        logger.info("edits before this process started cannot be read, the next reading tries again: %s", error)


def _announce_change(old: Snapshot | None, new: Snapshot | None) -> None:
    """Send ``rules_changed`` with the previously announced and the current rules."""
    if new is None or new is old:
        return
    announced_at, _state.announced_at = _state.announced_at, new.overrides.now() if new.overrides else 0.0
    rules_changed.send_robust(sender=Snapshot, old=old and old.as_of(announced_at), new=new)


class EffectiveSince(NamedTuple):
    """Time at which the current rules took effect in this process."""

    at: float  #: in seconds since 1970
    after: float | None  #: seconds since the edit; None for the first rules of a process, and without a Redis


NOT_LOADED: Final = EffectiveSince(0.0, None)


@dataclass(slots=True)
class _ProcessRules:
    """Rules of this process under these settings, and their last reading."""

    pinned: Snapshot | None = None  #: rules that a test uses in place of the snapshot
    snapshot: Snapshot | None = None
    is_committed: bool = False  #: False until the database was read outside a transaction
    has_recalled: bool = False  #: True once edits made before this process started are read
    #: Weak reference to the connection in whose open transaction the rules were read.
    open_in: Callable[[], BaseDatabaseWrapper | None] | None = None
    version: str | None = None  #: version in Redis before the last reading
    #: Times of the last reading, and of the last confirmation that the rules are the newest, on the monotonic clock.
    read_at: float = 0.0
    confirmed_at: float = 0.0
    effective_since: EffectiveSince = NOT_LOADED
    announced_at: float = 0.0  #: when receivers of ``rules_changed`` last had the rules in force, in seconds since 1970
    ended: tuple[Override, ...] = ()  #: overrides that ended, for which no signal was sent yet
    reading_seconds: float = 0.0  #: duration of the last reading
    reading_number: int = -1  #: number of the reading that the snapshot is from
    reading: Reading = NOTHING_READ  #: last reading that did not fail
    faults: frozenset[tuple[str, str, str]] = frozenset()  #: faults that were logged
    override_faults: frozenset[tuple[int, str]] = frozenset()
    is_failing: bool = False
    failing_sources: frozenset[str] = frozenset()
    reader: Reader = field(default_factory=lambda: Reader(_read_in_thread))
    lock: Lock = field(default_factory=Lock)


_state = _ProcessRules()
_reading_numbers: Final = count()


def current() -> Snapshot:
    """Return the current rules. The first calls in a process wait until they are read, for DEADLINE at most.

    After that, the rules of settings are used until the database has answered.
    """
    if (snapshot := loaded()) is not None:
        return snapshot
    if _starts_first_reading():
        _state.reader.wait(conf().DEADLINE)
        return loaded() or _without_database()
    _state.open_in = None  # before the reading, so that a failure does not repeat it
    return refresh()


def loaded() -> Snapshot | None:
    """Return the current rules if no reading is necessary, else None."""
    if _state.open_in is None or _is_open(_state.open_in()):
        return _state.pinned or _state.snapshot
    return _state.pinned


def is_unlimited() -> bool:
    """Return True in a test run without limits, except in a test with rules of its own."""
    return _state.pinned is None and _is_unlimited_run()


def current_limits() -> Snapshot:
    """Return the current rules. Return them enabled, too, in a test run without limits."""
    snapshot = current()
    return _limits_of(_state.reading) if is_unlimited() else snapshot


async def acurrent() -> Snapshot:
    """Return the current rules. The first reading blocks neither the event loop nor a thread of its pool."""
    if (snapshot := loaded()) is not None:
        return snapshot
    if not _starts_first_reading():
        return await sync_to_async(current)()
    deadline, pause = monotonic() + conf().DEADLINE, MIN_CHECK_SECONDS
    # An event would need the loop of each caller. This happens once in a process.
    while not _state.reader.wait(0) and (remaining := deadline - monotonic()) > 0:
        await asyncio.sleep(min(pause, remaining))
        pause = min(2 * pause, MAX_CHECK_SECONDS)
    return loaded() or _without_database()


def pin(snapshot: Snapshot | None) -> Snapshot | None:
    """Use these rules instead of those of settings and database, or end that with None. Return the former pin.

    Edits made in the meantime take effect afterwards.
    """
    former, _state.pinned = _state.pinned, snapshot
    _announce_change(former or _state.snapshot, snapshot or _state.snapshot)
    return former


def changed() -> None:
    """Apply an edit that was committed, and publish it to the other processes. Raise nothing."""
    global _unpublished
    try:
        with _state.lock:
            _unpublished = f"{shared_clock.now():.3f}-{secrets.token_hex(8)}"
        # Publish before the reading. A process that commits after our reading publishes after our version.
        refresh(fetch(get_store()))
    except Exception:
        logger.exception("edited rules could not be read: the rules in force stay until the next poll reads them")


def poll(store: AnyStore) -> None:
    """Read the rules again if another process has edited them, and remove overrides that ended. Raise no StoreError.

    The rules are read in a separate thread, because a database may hang. Without a Redis for their version, each poll
    reads them, over a connection that the thread keeps.
    """
    end_overrides()
    if not conf().DATABASE_RULES or sources.is_private():
        return
    version = fetch(store)
    age = monotonic() - _state.read_at
    pause = min(_state.reading_seconds * PAUSE_FACTOR, MAX_PAUSE_SECONDS)
    if version is None and _state.is_committed and pause > POLL_SECONDS and age < pause:
        return
    is_current = version is not None and version == _state.version and _state.is_committed
    if is_current:
        _state.confirmed_at = monotonic()
    if not is_current or age >= REREAD_SECONDS or _state.ended or _is_promotion_due(_state):
        _state.reader.request(version)


def effective_since() -> EffectiveSince:
    """Return when the current rules took effect in this process."""
    return _state.effective_since


def unconfirmed() -> float:
    """Return the seconds since this process last knew its rules to be the newest.

    Return 0.0 if no other process can edit them.
    """
    state = _state
    if state.snapshot is None or not conf().DATABASE_RULES or sources.is_private():
        return 0.0
    return monotonic() - state.confirmed_at


def _is_promotion_due(state: _ProcessRules) -> bool:
    """Return True if a candidate is to replace its rule by now."""
    snapshot = state.snapshot
    return snapshot is not None and any(
        candidate.starts_at and candidate.starts_at <= snapshot.overrides.now() for candidate in snapshot.candidates
    )


def _starts_first_reading() -> bool:
    """Have the reader's thread make the first reading, unless it does so already. Return False if it cannot.

    It cannot where no thread can be started or sees the same database (a test, a database in memory), and for rules
    that were read inside a transaction that has ended.
    """
    is_private = detect_test_run.has_begun() or (sources.are_in_database() and sources.is_private())
    if is_private or _state.snapshot is not None:
        return False
    try:
        return _state.reader.request(None)
    except RuntimeError:
        return False


def _without_database() -> Snapshot:
    """Use the rules of settings, because the database has not answered. Return the current rules."""
    reading = Reading(sources.from_settings())
    snapshot = _snapshot_of(reading)
    with _state.lock:
        if _state.snapshot is None:  # else the database has just answered
            _state.snapshot, _state.confirmed_at = snapshot, monotonic()
            _state.effective_since = EffectiveSince(shared_clock.now(), None)
            _log_faults(_state, reading)
            logger.warning(DATABASE_LATE, conf().DEADLINE)
        return _state.snapshot


def _is_open(connection: BaseDatabaseWrapper | None) -> bool:
    """Return True if the transaction in which the rules were read is open. Afterwards it may be rolled back."""
    return connection is not None and connection.in_atomic_block


def _install(state: _ProcessRules, reading: Reading, new: Snapshot, version: str | None) -> None:
    _log_faults(state, reading)
    state.read_at = monotonic()
    after = _seconds_since_edit(state, version)
    if reading.failure is None:
        state.confirmed_at = state.read_at
        state.is_committed, state.open_in, state.reading = reading.open_in is None, reading.open_in, reading
        state.version = version or state.version
    # Equal rules stay the same object, so that caches of it stay valid.
    if state.snapshot is None or (reading.failure is None and state.snapshot.version != new.version):
        state.snapshot, state.effective_since = new, EffectiveSince(shared_clock.now(), after)


def _seconds_since_edit(state: _ProcessRules, version: str | None) -> float | None:
    """Return the age of the edit with this version, or None if the version is the first or unchanged."""
    if state.snapshot is None or state.version is None or version is None or version == state.version:
        return None
    edited_at = version.partition("-")[0]
    return max(0.0, shared_clock.now() - float(edited_at)) if edited_at.replace(".", "", 1).isdecimal() else None


def _is_unlimited_run() -> bool:
    return conf().TESTS == "unlimited" and detect_test_run.has_begun()


def _snapshot_of(reading: Reading) -> Snapshot:
    if _is_unlimited_run():  # code may ask for a rule by its name, so none is missing
        return Snapshot([replace(rule, enabled=False) for rule in reading.rules], faults=_faults_of(reading))
    return _limits_of(reading)


def _faults_of(reading: Reading) -> dict[str, str]:
    return {name: fault for _, name, fault in reading.faults}


def _limits_of(reading: Reading) -> Snapshot:
    rules, candidates = reading.rules, reading.candidates
    if conf().SHADOW:
        rules = tuple([rule.as_shadow() for rule in rules])
        candidates = tuple([replace(candidate, share=0.0) for candidate in candidates])
    overrides, faults = reading.database.overrides, _faults_of(reading)
    return Snapshot(rules, overrides=overrides, candidates=candidates, faults=faults)


def _log_faults(state: _ProcessRules, reading: Reading) -> None:
    """Log each new fault once."""
    if reading.failure is not None:
        if not state.is_failing:
            kept = "the rules in force stay" if state.reading is not NOTHING_READ else "only the rules in settings hold"
            logger.warning(
                "rules cannot be read from the database: %s; %s", sources.failure_text(reading.failure), kept
            )
        state.is_failing = True
        return
    for source in sorted(reading.failures.keys() - state.failing_sources):
        reason = sources.failure_text(reading.failures[source])
        logger.warning("rules cannot be read from %s: %s; its former rules stay in force", source, reason)
    for source, name, message in sorted(reading.faults - state.faults):
        logger.error("rule %r from %s is skipped, it limits nothing until corrected: %s", name, source, message)
    override_faults = frozenset(reading.database.override_faults.items())
    for number, message in sorted(override_faults - state.override_faults):
        logger.error("override %d is skipped, correct it: %s", number, message)
    state.is_failing, state.faults, state.override_faults = False, reading.faults, override_faults
    state.failing_sources = frozenset(reading.failures)


@receiver(setting_changed, dispatch_uid="django_throttle.rulebook")
def _forget(*, setting: str, **_: object) -> None:
    global _state
    if setting in ("DJANGO_THROTTLE", "DATABASES", "INSTALLED_APPS"):
        _state.reader.stop()
        _state = _ProcessRules(_state.pinned)
        migrate_counts.forget()


def _after_fork() -> None:
    # The threads that held the lock, or were reading, do not exist in this process.
    _state.lock, _state.reader = Lock(), Reader(_read_in_thread)


@atexit.register
def _at_exit() -> None:
    _state.reader.stop()


os.register_at_fork(after_in_child=_after_fork)


# By connection: an event that is set once the edits of its last transaction are published.
_announced: Final[WeakKeyDictionary[BaseDatabaseWrapper, Event]] = WeakKeyDictionary()


def announce_edits(model: type[Model] | str) -> None:
    """Make every process read the rules again when a row of this model is saved or deleted, after the commit.

    ``model`` is a class, or "app_label.ModelName". Call it in the method ``ready`` of an app config. Bulk edits send no
    signals: call ``changed`` after those.
    """
    for signal in (post_save, post_delete):
        signal.connect(announce, sender=model, dispatch_uid="django_throttle.edits")


def announce(*, using: str, **_: object) -> None:
    """Apply edits when the open transaction is committed, once per transaction."""
    connection = transaction.get_connection(using)
    announced = _announced.get(connection)
    if announced is None or announced.is_set():
        announced = _announced[connection] = Event()
    transaction.on_commit(partial(_announce, announced), using=using)


def _announce(announced: Event) -> None:
    if not announced.is_set():
        announced.set()
        changed()
