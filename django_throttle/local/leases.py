"""The leases that this process holds, and the part of them that Redis knows."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from django_throttle.core.commands import SOCKET_LEASE
from django_throttle.core.decision import Lease
from django_throttle.local import process_identity
from django_throttle.runtime import in_child

MAX_RELEASED: Final = 100  # confirmed releases that are kept, so that each node of a Cluster probably has some
MAX_FORMER_UIDS: Final = 4

LeaseKey = tuple[str, str]  # rule id, ident


class PendingRelease(NamedTuple):
    """A release that Redis has not confirmed."""

    uid: str  #: uid under which the lease was taken
    rule_id: str
    ident: str
    lease: str
    is_repeated: bool = False  #: True if a concurrent registration may have undone the release, which is then repeated


class Leases:
    """The leases of a process by key, and what the agent still has to send to Redis. A key is (rule id, ident).

    *Unsent* keys have leases that Redis may not know. *Unconfirmed* releases are sent until Redis confirms them.
    *Unverified* keys may have leases in Redis that no socket or request holds. *Retiring* keys are announced without
    need. Safe to use from any thread. A forked child starts empty, with a new uid.
    """

    def __init__(self) -> None:
        self.restart()
        in_child(self, Leases.restart)

    def restart(self) -> None:
        """Drop all leases and take a new uid, in a forked child."""
        self._lock = threading.Lock()
        self.uid = new_uid()
        self.renewals = 0  #: number of uids that this process had before
        self.former: tuple[str, ...] = ()  #: earlier uids of this process that may still be in Redis
        self.is_lost = False  #: True if Redis does not know the uid any more
        self.is_introduced = False  #: True if Redis knows the host and pid of this process
        # Monotonic time at which each lease was taken or touched. The key of the newest lease is the last.
        self._held: OrderedDict[LeaseKey, dict[str, float]] = OrderedDict()
        self._announced: set[LeaseKey] = set()
        self._unsent: set[LeaseKey] = set()
        self._unknown: set[tuple[LeaseKey, str]] = set()  # leases that were never sent to Redis
        self._unconfirmed: set[PendingRelease] = set()
        self._released: deque[PendingRelease] = deque(maxlen=MAX_RELEASED)  # the last confirmed releases
        self._to_release: deque[Lease] = deque()
        self._unverified: dict[LeaseKey, float] = {}
        self._idle: set[LeaseKey] = set()
        self._retiring: set[LeaseKey] = set()
        # Keys of leases taken in this beat and the one before. A server that has lost data since then may have such a
        # lease without the announcement of its key.
        self._recent, self._earlier = set[LeaseKey](), set[LeaseKey]()
        self._unnamed: deque[set[LeaseKey]] = deque(maxlen=MAX_FORMER_UIDS)  # the same of each former uid
        self._evicted: set[str] = set()  # evicted leases that their sockets have not released yet

    # Identity of the process

    def introduction_under(self, uid: str) -> str:
        """Return the description of this process for Redis; empty if Redis has it, or ``uid`` is not current."""
        introduction = "" if self.is_introduced else self.report()
        return introduction if uid == self.uid else ""

    def report(self) -> str:
        """Return the identity of this process and the number of its leases, as JSON."""
        return process_identity.describe(len(self), self.renewals)

    def renew(self) -> str:
        """Take a new uid, because Redis has expired or lost the old one, and return the old one.

        All leases become unsent.
        """
        with self._lock:
            former, self.uid = self.uid, new_uid()
            self.renewals += 1
            self.former = (former, *self.former)[:MAX_FORMER_UIDS]
            self.is_lost = self.is_introduced = False
            self._unnamed.append(self._earlier | self._recent)
            self._recent, self._earlier = set(), set()
            self._announce_again()
            return former

    def note_intact(self) -> None:
        """Note that a beat has found nothing lost."""
        with self._lock:
            self.is_lost = False
            self._earlier, self._recent = self._recent, set()

    def unnamed(self) -> set[LeaseKey]:
        """Return the keys under which an old copy of Redis' data may have leases of former uids."""
        with self._lock:
            return set().union(*self._unnamed)

    # Taking and releasing

    def hold(self, rule_id: str, ident: str, lease: str, uid: str | None = None, *, sent: bool = True) -> None:
        """Add a lease. ``uid`` is the uid under which it was taken; ``sent`` is False if Redis was not asked."""
        key = rule_id, ident
        with self._lock:
            # The command failed, but may still arrive, and the lease was then granted locally.
            unconfirmed = self._unconfirmed
            failed = unconfirmed.intersection([PendingRelease(self.uid, rule_id, ident, lease)]) if unconfirmed else ()
            if sent:
                self._unknown.discard((key, lease))
            elif not failed and not self.is_held(rule_id, ident, lease):
                self._unknown.add((key, lease))
            unconfirmed.difference_update(failed)
            self._held.setdefault(key, {}).setdefault(lease, time.monotonic())
            self._held.move_to_end(key)
            self._recent.add(key)
            if uid is not None and uid != self.uid:  # the uid was replaced during the call
                self._unconfirmed.add(PendingRelease(uid, rule_id, ident, lease))
                self._unsent.add(key)
            if not sent or key not in self._announced:
                self._unsent.add(key)

    def drop(self, rule_id: str, ident: str, lease: str) -> bool:
        """Remove a lease without telling Redis. Return False if this process did not hold it."""
        with self._lock:
            self._evicted.discard(lease)
            return self._drop((rule_id, ident), lease)

    def release(self, rule_id: str, ident: str, lease: str) -> tuple[PendingRelease, ...]:
        """Remove a lease, and return the releases to send, which become unconfirmed.

        Return an empty tuple if this process did not hold the lease, or Redis cannot know it.
        """
        key = rule_id, ident
        with self._lock:
            self._evicted.discard(lease)
            # Until its registration under a new uid has arrived, the lease may be in Redis under an old uid.
            uids = (self.uid, *self.former) if key in self._unsent else (self.uid,)
            is_unknown = (key, lease) in self._unknown
            if not self._drop(key, lease) or is_unknown:
                return ()
            releases = tuple(PendingRelease(uid, rule_id, ident, lease) for uid in uids)
            self._unconfirmed.update(releases)
            return releases

    def release_uncertain(self, rule_id: str, ident: str, lease: str, uid: str) -> None:
        """Have a lease released that ``uid`` may or may not have in Redis.

        The command that takes it may still arrive after that, so the key becomes unverified.
        """
        with self._lock:
            self._drop((rule_id, ident), lease)  # an eviction may have taken the slot already
            self._unconfirmed.add(PendingRelease(uid, rule_id, ident, lease))
            self._recent.add((rule_id, ident))
            self._unverified.setdefault((rule_id, ident), time.monotonic())

    def release_later(self, lease: Lease) -> None:
        """Have the agent release this lease. Takes no lock, because the garbage collector may call it."""
        self._to_release.append(lease)

    def take_to_release(self) -> list[Lease]:
        """Remove and return the leases of ``release_later``, for the caller to release."""
        leases: list[Lease] = []
        with suppress(IndexError):
            while True:
                leases.append(self._to_release.popleft())
        return leases

    def evict(self, rule_id: str, ident: str, lease: str) -> None:
        """Note that a lease was evicted while its socket is open, or about to open."""
        with self._lock:
            if self._drop((rule_id, ident), lease):
                self._evicted.add(lease)

    def touch(self, rule_id: str, ident: str, lease: str, since: float) -> bool:
        """Note the monotonic time of the last frame of a lease's socket. Return False if the lease is not held."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            if lease in leases:
                leases[lease] = since
            return lease in leases

    def _drop(self, key: LeaseKey, lease: str) -> bool:
        self._unknown.discard((key, lease))
        leases = self._held.get(key, {})
        was_held = leases.pop(lease, None) is not None
        if was_held and not leases:
            del self._held[key]
            self._unsent.discard(key)
        return was_held

    # Held leases

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._held.values()))

    def count(self, rule_id: str, ident: str) -> int:
        """Return the number of leases of this rule and ident that this process holds."""
        return len(self._held.get((rule_id, ident), ()))

    def is_held(self, rule_id: str, ident: str, lease: str) -> bool:
        return lease in self._held.get((rule_id, ident), ())

    def holdings(self) -> dict[LeaseKey, tuple[str, ...]]:
        """Return all leases by key."""
        with self._lock:
            return {key: tuple(leases) for key, leases in self._held.items()}

    def unreleased(self) -> set[str]:
        """Return the leases that are not released yet, evicted ones included."""
        with self._lock:
            return self._evicted.union(*self._held.values())

    def first_socket(self, rule_id: str, ident: str) -> str | None:
        """Return the socket lease that was taken, or touched, longest ago; None if there is none."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            of_sockets = (lease for lease in leases if lease.startswith(SOCKET_LEASE))
            return min(of_sockets, key=leases.__getitem__, default=None)

    # Knowledge of Redis

    def is_announced(self, rule_id: str, ident: str) -> bool:
        """Return True if Redis knows that this process may hold leases of this rule and ident."""
        return (rule_id, ident) in self._announced

    @property
    def has_announced(self) -> bool:
        """True if Redis knows some keys of this process, to our knowledge."""
        return bool(self._announced)

    def confirm(self, uid: str, reply: int, *keys: LeaseKey) -> None:
        """Note the reply of announce.lua: 1 if it announced ``keys`` under ``uid``, 0 if it did not know the uid."""
        with self._lock:
            if uid != self.uid:
                return
            if reply:
                self.is_introduced = True
                self._announced.update(keys)
            else:
                self.is_lost = True

    def announce_again(self) -> None:
        """Announce and send all leases again, because Redis has lost what was announced."""
        with self._lock:
            self._announce_again()

    def _announce_again(self) -> None:
        self._unsent.update(self._held)
        for keys in (self._announced, self._idle, self._retiring):
            keys.clear()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send_again(self, keys: Iterable[LeaseKey]) -> None:
        """Mark these keys as unsent, because Redis may not know their leases."""
        with self._lock:
            self._unsent.update(keys)

    def sent_pairs(self) -> list[LeaseKey]:
        """Return the keys whose leases are registered in Redis, to our knowledge."""
        with self._lock:
            return [key for key in self._held if key not in self._unsent]

    def take_unsent(self, most: int) -> list[LeaseKey]:
        """Remove and return up to ``most`` unsent keys; call ``send_again`` for those that fail."""
        with self._lock:
            self._unsent.intersection_update(self._held)
            keys = list(islice(self._unsent, most))
            self._unsent.difference_update(keys)
            return keys

    def to_register(self, keys: Iterable[LeaseKey]) -> dict[LeaseKey, dict[str, float]]:
        """Return the leases of these keys with their ages in seconds. Redis may know them from now on."""
        with self._lock:
            now = time.monotonic()
            held = {key: self._held[key] for key in keys if key in self._held}
            self._unknown.difference_update((key, lease) for key, leases in held.items() for lease in leases)
            return {key: {lease: now - since for lease, since in leases.items()} for key, leases in held.items()}

    def registered(self, uid: str, key: LeaseKey, leases: Mapping[str, float]) -> None:
        """Note that Redis has these leases. Leases that were dropped meanwhile are released again."""
        with self._lock:
            if uid != self.uid:
                self._unsent.add(key)
            held = self._held.get(key, {})
            self._unconfirmed.update(
                PendingRelease(uid, *key, lease, is_repeated=True) for lease in leases if lease not in held
            )

    def unconfirmed(self) -> list[PendingRelease]:
        """Return the releases to send; call ``confirm_released`` for those that arrive."""
        with self._lock:
            return list(self._unconfirmed)

    def confirm_released(self, *releases: PendingRelease) -> None:
        """Note that Redis has confirmed these releases."""
        with self._lock:
            self._unconfirmed.difference_update(releases)
            self._released.extend(releases)

    def newest(self, most: int) -> list[tuple[LeaseKey, str]]:
        """Return the newest lease of each of up to ``most`` keys that Redis knows, the newest key first."""
        with self._lock:
            sent = (key for key in reversed(self._held) if key not in self._unsent)
            return [(key, next(reversed(self._held[key]))) for key in islice(sent, most)]

    def last_released(self) -> list[tuple[LeaseKey, str]]:
        """Return the leases that Redis has released under the current uid, the newest first."""
        with self._lock:
            return [
                ((release.rule_id, release.ident), release.lease)
                for release in reversed(self._released)
                if release.uid == self.uid and not self.is_held(release.rule_id, release.ident, release.lease)
            ]

    def mark_unverified(self, keys: Iterable[LeaseKey]) -> None:
        """Mark these keys as unverified, so that they are compared with Redis later."""
        with self._lock:
            self._unverified.update(dict.fromkeys(keys, time.monotonic()))

    def pop_unverified(self, seconds: float, most: int) -> list[LeaseKey]:
        """Remove and return up to ``most`` keys that have been unverified for ``seconds``."""
        with self._lock:
            latest = time.monotonic() - seconds
            keys = list(islice((key for key, since in self._unverified.items() if since <= latest), most))
            for key in keys:
                del self._unverified[key]
            return keys

    def retire(self, most: int) -> list[LeaseKey]:
        """Return up to ``most`` announced keys without leases, now and at the last call; then call ``retired``."""
        with self._lock:
            releasing = {(release.rule_id, release.ident) for release in self._unconfirmed}
            idle = self._announced.difference(self._held, releasing)
            room = max(0, most - len(self._retiring))
            self._retiring.update(islice(idle & self._idle, room))
            self._announced -= self._retiring
            self._idle = idle - self._retiring
            return list(self._retiring)

    def retired(self, keys: Iterable[LeaseKey]) -> None:
        """Note that Redis has forgotten these keys. A key that was announced again meanwhile becomes unsent."""
        with self._lock:
            self._retiring.difference_update(keys)
            again = self._announced.intersection(keys)
            self._announced -= again
            self._unsent |= again


def new_uid() -> str:
    """Return a unique text of 12 characters."""
    return secrets.token_urlsafe(9)
