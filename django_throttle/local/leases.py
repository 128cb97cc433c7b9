"""Leases of open connections that this process holds, and what the store knows of them."""

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
from django_throttle.lifecycle import in_child
from django_throttle.local import process_identity

MAX_RELEASED: Final = 100  # releases that are remembered, to have one of each node of a Cluster
MAX_FORMER: Final = 4

HeldUnder = tuple[str, str]  # rule id, ident


class Release(NamedTuple):
    """A release that Redis has not confirmed; ``uid`` is the process under which the lease was taken.

    ``again`` is True for one that a registration on its way may have undone: the confirmation of the first one is
    none of this.
    """

    uid: str
    rule_id: str
    ident: str
    lease: str
    again: bool = False


class Leases:
    """What a process holds, by (rule id, ident), and what the agent must still tell Redis of it.

    *Unsent* pairs have leases that Redis may not know. *Unconfirmed* releases are sent until Redis confirms them.
    *Suspect* pairs may have leases in Redis that nobody holds. *Retiring* pairs are announced without need. Safe to
    use from any thread; empty, with a new uid, after a fork.
    """

    def __init__(self) -> None:
        self.restart()
        in_child(self, Leases.restart)

    def restart(self) -> None:
        """Forget everything and become a new process: the first thing a forked child does."""
        self._lock = threading.Lock()
        self.uid = new_uid()
        self.turn = 0  # how many uids this process had before
        self.former: tuple[str, ...] = ()  # uids of this process that may still be in Redis
        self.lost = False  # Redis does not know our uid any more
        self.is_introduced = False  # whether Redis knows who this process is
        # Lease: when taken or heard of, on the monotonic clock; the pair of which one was taken last is the last.
        self._held: OrderedDict[HeldUnder, dict[str, float]] = OrderedDict()
        self._announced: set[HeldUnder] = set()
        self._unsent: set[HeldUnder] = set()
        self._unknown: set[tuple[HeldUnder, str]] = set()  # leases that Redis cannot know: it was away all the time
        self._unconfirmed: set[Release] = set()
        self._released: deque[Release] = deque(maxlen=MAX_RELEASED)  # the last ones that Redis has confirmed
        self._to_release: deque[Lease] = deque()
        self._suspect: dict[HeldUnder, float] = {}
        self._idle: set[HeldUnder] = set()
        self._retiring: set[HeldUnder] = set()
        # Where leases were taken in this beat and the one before. A server that has lost its data since then may have
        # them, but nothing there says that this process has leases in these places.
        self._recent, self._earlier = set[HeldUnder](), set[HeldUnder]()
        self._unnamed: deque[set[HeldUnder]] = deque(maxlen=MAX_FORMER)  # the same of each former uid
        self._evicted: set[str] = set()  # leases that were taken away, and that their sockets have not released

    # Who this process is

    def introduction_under(self, uid: str) -> str:
        """Who this process is, for Redis to keep; empty once Redis knows it, and when ``uid`` was replaced since."""
        introduction = "" if self.is_introduced else self.report()
        return introduction if uid == self.uid else ""

    def report(self) -> str:
        """Who this process is and how much it holds, as JSON."""
        return process_identity.describe(len(self), self.turn)

    def renew(self) -> str:
        """Take a new uid, since Redis has expired the old one or lost what it knew of it; returns the old one.

        All leases are unsent.
        """
        with self._lock:
            former, self.uid = self.uid, new_uid()
            self.turn += 1
            self.former = (former, *self.former)[:MAX_FORMER]
            self.lost = self.is_introduced = False
            self._unnamed.append(self._earlier | self._recent)
            self._recent, self._earlier = set(), set()
            self._announce_again()
            return former

    def note_intact(self) -> None:
        """A beat has found nothing lost."""
        with self._lock:
            self.lost = False
            self._earlier, self._recent = self._recent, set()

    def unnamed(self) -> set[HeldUnder]:
        """Where an old copy of Redis' data may have leases of our former uids that nothing names."""
        with self._lock:
            return set().union(*self._unnamed)

    # Taking and releasing

    def hold(self, rule_id: str, ident: str, lease: str, uid: str | None = None, *, sent: bool = True) -> None:
        """A lease is ours. ``uid`` is the one it was taken under; ``sent`` is False when Redis was not asked."""
        pair = rule_id, ident
        with self._lock:
            # A call that failed, and may arrive, and was then granted locally.
            owed = self._unconfirmed
            failed = owed.intersection([Release(self.uid, rule_id, ident, lease)]) if owed else ()
            if sent:
                self._unknown.discard((pair, lease))
            elif not failed and not self.is_held(rule_id, ident, lease):
                self._unknown.add((pair, lease))
            owed.difference_update(failed)
            self._held.setdefault(pair, {}).setdefault(lease, time.monotonic())
            self._held.move_to_end(pair)
            self._recent.add(pair)
            if uid is not None and uid != self.uid:  # it was replaced while the call was under way
                self._unconfirmed.add(Release(uid, rule_id, ident, lease))
                self._unsent.add(pair)
            if not sent or pair not in self._announced:
                self._unsent.add(pair)

    def drop(self, rule_id: str, ident: str, lease: str) -> bool:
        """A lease is ours no more, and Redis need not be told; False when it was not."""
        with self._lock:
            self._evicted.discard(lease)
            return self._drop((rule_id, ident), lease)

    def release(self, rule_id: str, ident: str, lease: str) -> tuple[Release, ...]:
        """Drop a lease; returns the releases to send, which are unconfirmed from the same moment on.

        None when it was not ours, or was taken and dropped while Redis was away.
        """
        pair = rule_id, ident
        with self._lock:
            self._evicted.discard(lease)
            # Before its registration under a new uid has arrived, it may be in Redis under an old one.
            uids = (self.uid, *self.former) if pair in self._unsent else (self.uid,)
            is_unknown = (pair, lease) in self._unknown
            if not self._drop(pair, lease) or is_unknown:
                return ()
            releases = tuple(Release(uid, rule_id, ident, lease) for uid in uids)
            self._unconfirmed.update(releases)
            return releases

    def release_uncertain(self, rule_id: str, ident: str, lease: str, uid: str) -> None:
        """Nobody knows whether ``uid`` has this lease in Redis: have it released.

        The acquire may still arrive after that, so what Redis has is compared with what is held later on.
        """
        with self._lock:
            self._drop((rule_id, ident), lease)  # of a socket that had made room already
            self._unconfirmed.add(Release(uid, rule_id, ident, lease))
            self._recent.add((rule_id, ident))
            self._suspect.setdefault((rule_id, ident), time.monotonic())

    def release_later(self, lease: Lease) -> None:
        """Nobody else can release this lease any more. A garbage collector says so, so no lock is taken."""
        self._to_release.append(lease)

    def take_to_release(self) -> list[Lease]:
        """The leases of ``release_later``, for the caller to release."""
        found: list[Lease] = []
        with suppress(IndexError):
            while True:
                found.append(self._to_release.popleft())
        return found

    def evict(self, rule_id: str, ident: str, lease: str) -> None:
        """A lease was taken away from its socket, which is open still, or about to be."""
        with self._lock:
            if self._drop((rule_id, ident), lease):
                self._evicted.add(lease)

    def touch(self, rule_id: str, ident: str, lease: str, since: float) -> bool:
        """The socket of this lease was heard of, at a moment on the monotonic clock; False when nobody holds it."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            if lease in leases:
                leases[lease] = since
            return lease in leases

    def _drop(self, pair: HeldUnder, lease: str) -> bool:
        self._unknown.discard((pair, lease))
        leases = self._held.get(pair, {})
        known = leases.pop(lease, None) is not None
        if known and not leases:
            del self._held[pair]
            self._unsent.discard(pair)
        return known

    # What is held

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._held.values()))

    def count(self, rule_id: str, ident: str) -> int:
        """How many leases of this rule and ident this process holds."""
        return len(self._held.get((rule_id, ident), ()))

    def is_held(self, rule_id: str, ident: str, lease: str) -> bool:
        return lease in self._held.get((rule_id, ident), ())

    def holdings(self) -> dict[HeldUnder, tuple[str, ...]]:
        """All leases, by (rule id, ident)."""
        with self._lock:
            return {pair: tuple(leases) for pair, leases in self._held.items()}

    def unreleased(self) -> set[str]:
        """The leases that nobody has released yet, evicted ones among them."""
        with self._lock:
            return self._evicted.union(*self._held.values())

    def first_socket(self, rule_id: str, ident: str) -> str | None:
        """The lease of a socket that was taken, or heard of, longest ago; None when no socket has any."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            of_sockets = (lease for lease in leases if lease.startswith(SOCKET_LEASE))
            return min(of_sockets, key=leases.__getitem__, default=None)

    # What Redis knows

    def is_announced(self, rule_id: str, ident: str) -> bool:
        """True when Redis knows that this process may hold leases of this rule and ident."""
        return (rule_id, ident) in self._announced

    @property
    def has_announced(self) -> bool:
        """Whether Redis knows where this process may hold leases, as far as we know."""
        return bool(self._announced)

    def confirm(self, uid: str, reply: int, *pairs: HeldUnder) -> None:
        """Take note of announce.lua's reply: 1 when it announced ``pairs`` under ``uid``, 0 when it did not know it."""
        with self._lock:
            if uid != self.uid:
                return
            if reply:
                self.is_introduced = True
                self._announced.update(pairs)
            else:
                self.lost = True

    def announce_again(self) -> None:
        """Redis has lost what was announced: announce, and send, all that is held; the rest when it is taken again."""
        with self._lock:
            self._announce_again()

    def _announce_again(self) -> None:
        self._unsent.update(self._held)
        for pairs in (self._announced, self._idle, self._retiring):
            pairs.clear()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send_again(self, pairs: Iterable[HeldUnder]) -> None:
        """Redis may not know the leases of these pairs: send them."""
        with self._lock:
            self._unsent.update(pairs)

    def sent_pairs(self) -> list[HeldUnder]:
        """Those of which Redis knows what is held, as far as we know."""
        with self._lock:
            return [pair for pair in self._held if pair not in self._unsent]

    def take_unsent(self, most: int) -> list[HeldUnder]:
        """Up to ``most`` unsent pairs; ``send_again`` what fails."""
        with self._lock:
            self._unsent.intersection_update(self._held)
            taken = list(islice(self._unsent, most))
            self._unsent.difference_update(taken)
            return taken

    def to_register(self, pairs: Iterable[HeldUnder]) -> dict[HeldUnder, dict[str, float]]:
        """What is held of these pairs, each lease with its age in seconds: from now on Redis may know of it."""
        with self._lock:
            now = time.monotonic()
            held = {pair: self._held[pair] for pair in pairs if pair in self._held}
            self._unknown.difference_update((pair, lease) for pair, leases in held.items() for lease in leases)
            return {pair: {lease: now - since for lease, since in leases.items()} for pair, leases in held.items()}

    def registered(self, uid: str, pair: HeldUnder, leases: Mapping[str, float]) -> None:
        """Redis has these leases now; those that were dropped while they travelled are released again."""
        with self._lock:
            if uid != self.uid:
                self._unsent.add(pair)
            held = self._held.get(pair, {})
            self._unconfirmed.update(Release(uid, *pair, lease, again=True) for lease in leases if lease not in held)

    def unconfirmed(self) -> list[Release]:
        """Releases to send; ``confirm_released`` those that arrive."""
        with self._lock:
            return list(self._unconfirmed)

    def confirm_released(self, *done: Release) -> None:
        with self._lock:
            self._unconfirmed.difference_update(done)
            self._released.extend(done)

    def newest(self, most: int) -> list[tuple[HeldUnder, str]]:
        """The last lease of each of up to ``most`` pairs that Redis knows, of those that had one taken last."""
        with self._lock:
            known = (pair for pair in reversed(self._held) if pair not in self._unsent)
            return [(pair, next(reversed(self._held[pair]))) for pair in islice(known, most)]

    def last_released(self) -> list[tuple[HeldUnder, str]]:
        """Leases that Redis has released under the present uid, the last one first."""
        with self._lock:
            last = [one for one in reversed(self._released) if one.uid == self.uid]
            return [((one.rule_id, one.ident), one.lease) for one in last if not self.is_held(*one[1:4])]

    def suspect(self, pairs: Iterable[HeldUnder]) -> None:
        """Compare these pairs with Redis later."""
        with self._lock:
            self._suspect.update(dict.fromkeys(pairs, time.monotonic()))

    def take_suspect(self, seconds: float, most: int) -> list[HeldUnder]:
        """Up to ``most`` pairs that have been suspect for ``seconds``."""
        with self._lock:
            ripe = time.monotonic() - seconds
            taken = list(islice((pair for pair, since in self._suspect.items() if since <= ripe), most))
            for pair in taken:
                del self._suspect[pair]
            return taken

    def retire(self, most: int) -> list[HeldUnder]:
        """Up to ``most`` announced pairs of which nothing was held at the last call either; then call ``retired``."""
        with self._lock:
            idle = self._announced.difference(self._held, ((one.rule_id, one.ident) for one in self._unconfirmed))
            room = max(0, most - len(self._retiring))
            self._retiring.update(islice(idle & self._idle, room))
            self._announced -= self._retiring
            self._idle = idle - self._retiring
            return list(self._retiring)

    def retired(self, pairs: Iterable[HeldUnder]) -> None:
        """Redis has forgotten these pairs; one that was announced again meanwhile may be among them: send it."""
        with self._lock:
            self._retiring.difference_update(pairs)
            again = self._announced.intersection(pairs)
            self._announced -= again
            self._unsent |= again


def new_uid() -> str:
    """An identity that no process has had before: 12 characters."""
    return secrets.token_urlsafe(9)
