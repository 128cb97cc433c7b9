"""The leases of one process, and what the store notes of them."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from django_throttle.connections import process
from django_throttle.core.decision import Lease
from django_throttle.forks import in_child

MOST_SETTLED: Final = 100  # releases that are remembered, to have one of each node of a Cluster

Pair = tuple[str, str]  # rule id, ident


class Owed(NamedTuple):
    """A release that Redis has not confirmed; ``uid`` is the process under which the lease was taken.

    ``again`` is True for one that a registration on its way may have undone: the first one's confirmation
    does not settle it.
    """

    uid: str
    rule_id: str
    ident: str
    lease: str
    again: bool = False


class Holdings:
    """What a process holds open, by (rule id, ident), and what Redis has not confirmed of it.

    Safe to use from any thread; empty, with a new uid, after a fork.
    """

    def __init__(self) -> None:
        self.restart()
        in_child(self, type(self).restart)

    def restart(self) -> None:
        """Forget everything and become a new process: the first thing a forked child does."""
        self._lock = threading.Lock()
        self.uid = new_uid()
        self.turn = 0  # how many uids this process had before
        self.former: tuple[str, ...] = ()  # uids of this process that may still be in Redis
        self.lost = False  # Redis does not know our uid any more
        self._introduced = False
        # Lease: when taken or heard of, on the monotonic clock; the pair of which one was taken last is the last.
        self._held: OrderedDict[Pair, dict[str, float]] = OrderedDict()
        self._announced: set[Pair] = set()
        self._unsent: set[Pair] = set()
        self._untold: set[tuple[Pair, str]] = set()  # leases that Redis cannot know: it was away all the time
        self._owed: set[Owed] = set()
        self._settled: deque[Owed] = deque(maxlen=MOST_SETTLED)  # those that Redis has confirmed, the last ones
        self._strays: deque[Lease] = deque()
        self._suspect: dict[Pair, float] = {}
        self._idle: set[Pair] = set()
        self._retiring: set[Pair] = set()

    @property
    def introduction(self) -> str:
        """Who this process is, for Redis to keep; empty once Redis knows it."""
        return "" if self._introduced else self.report()

    def introduce(self, uid: str) -> str:
        """The same for a caller that has read ``uid`` before: empty when that has been replaced since."""
        introduction = self.introduction
        return introduction if uid == self.uid else ""

    def report(self) -> str:
        """Who this process is and how much it holds, as JSON."""
        return process.describe(len(self), self.turn)

    def is_announced(self, rule_id: str, ident: str) -> bool:
        """True when Redis knows that this process may hold leases of this rule and ident."""
        return (rule_id, ident) in self._announced

    def confirm(self, uid: str, reply: int, *pairs: Pair) -> None:
        """Take note of announce.lua's reply: 1 when it announced ``pairs`` under ``uid``, 0 when it did not know it."""
        with self._lock:
            if uid != self.uid:
                return
            if reply:
                self._introduced = True
                self._announced.update(pairs)
            else:
                self.lost = True

    def hold(self, rule_id: str, ident: str, lease: str, uid: str | None = None, *, sent: bool = True) -> None:
        """A lease is ours. ``uid`` is the one it was taken under; ``sent`` is False when Redis was not asked."""
        pair = rule_id, ident
        with self._lock:
            failed = Owed(self.uid, rule_id, ident, lease)  # a call that failed, and may arrive; then granted locally
            if sent:
                self._untold.discard((pair, lease))
            elif failed not in self._owed and not self.has(rule_id, ident, lease):
                self._untold.add((pair, lease))
            self._owed.discard(failed)
            self._held.setdefault(pair, {}).setdefault(lease, time.monotonic())
            self._held.move_to_end(pair)
            stray = uid is not None and uid != self.uid
            if uid is not None and stray:  # the uid was replaced while the call was under way
                self._owed.add(Owed(uid, rule_id, ident, lease))
            if stray or not sent or pair not in self._announced:
                self._unsent.add(pair)

    def drop(self, rule_id: str, ident: str, lease: str) -> bool:
        """A lease is ours no more, and Redis need not be told; False when it was not."""
        with self._lock:
            return self._drop((rule_id, ident), lease)

    def let_go(self, rule_id: str, ident: str, lease: str) -> tuple[Owed, ...]:
        """Drop a lease, and owe its release in the same moment: what to tell Redis.

        Nothing when it was not ours, or when Redis cannot know of it: what comes and goes while it is away leaves
        no debts.
        """
        pair = rule_id, ident
        with self._lock:
            # Before its registration under a new uid has arrived, it may be in Redis under an old one.
            uids = (self.uid, *self.former) if pair in self._unsent else (self.uid,)
            is_untold = (pair, lease) in self._untold
            if not self._drop(pair, lease) or is_untold:
                return ()
            owed = tuple(Owed(uid, rule_id, ident, lease) for uid in uids)
            self._owed.update(owed)
            return owed

    def owe(self, rule_id: str, ident: str, lease: str, uid: str) -> None:
        """Nobody knows whether ``uid`` has this lease in Redis: have it released.

        The acquire may still arrive after that, so what Redis has is compared with what is held later on.
        """
        with self._lock:
            self._drop((rule_id, ident), lease)  # of a socket that had made room already
            self._owed.add(Owed(uid, rule_id, ident, lease))
            self._suspect.setdefault((rule_id, ident), time.monotonic())

    def stray(self, lease: Lease) -> None:
        """Nobody can give this lease back any more. A garbage collector says so, so no lock is taken."""
        self._strays.append(lease)

    def take_strays(self) -> list[Lease]:
        """Leases that went astray: what is to be given back for those who cannot."""
        found: list[Lease] = []
        while True:
            try:
                found.append(self._strays.popleft())
            except IndexError:
                return found

    def settle(self, *done: Owed) -> None:
        """Redis has confirmed these releases."""
        with self._lock:
            self._owed.difference_update(done)
            self._settled.extend(done)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._held.values()))

    def count(self, rule_id: str, ident: str) -> int:
        """How many leases of this rule and ident this process holds."""
        return len(self._held.get((rule_id, ident), ()))

    def has(self, rule_id: str, ident: str, lease: str) -> bool:
        """True when this process holds the lease."""
        return lease in self._held.get((rule_id, ident), ())

    def holdings(self) -> dict[Pair, tuple[str, ...]]:
        """All leases, by (rule id, ident)."""
        with self._lock:
            return {pair: tuple(leases) for pair, leases in self._held.items()}

    def _drop(self, pair: Pair, lease: str) -> bool:
        self._untold.discard((pair, lease))
        leases = self._held.get(pair, {})
        known = leases.pop(lease, None) is not None
        if known and not leases:
            del self._held[pair]
            self._unsent.discard(pair)
        return known


def new_uid() -> str:
    """An identity that no process has had before: 12 characters."""
    return secrets.token_urlsafe(9)
