"""What this process holds open: the truth that Redis is told, and told again when it forgets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from django_throttle.connections.holdings import Holdings, Owed, Pair, new_uid
from django_throttle.core.orders import SOCKET

__all__ = ["Owed", "Pair", "Registry"]

MAX_FORMER: Final = 4


class Registry(Holdings):
    """Holdings, and what the refresher must still tell Redis of them.

    *Unsent* pairs have leases that Redis may not know. *Owed* releases have not been confirmed. *Suspect*
    pairs may have leases in Redis that nobody holds. *Retiring* pairs are announced without need.
    """

    def restart(self) -> None:
        super().restart()
        self._taken_away: set[str] = set()  # leases that have not been given back since; see lose

    def lose(self, rule_id: str, ident: str, lease: str) -> None:
        """A lease was taken away from its socket, which is open still, or about to be."""
        with self._lock:
            if self._drop((rule_id, ident), lease):
                self._taken_away.add(lease)

    def drop(self, rule_id: str, ident: str, lease: str) -> bool:
        self._taken_away.discard(lease)
        return super().drop(rule_id, ident, lease)

    def taken(self) -> set[str]:
        """The leases that nobody has given back yet, those that were taken away among them."""
        with self._lock:
            return self._taken_away.union(*self._held.values())

    def renew(self) -> str:
        """Become a new uid, since Redis has buried the old one or lost what it knew of it; all is unsent.

        Returns the old one.
        """
        with self._lock:
            former, self.uid = self.uid, new_uid()
            self.turn += 1
            self.former = (former, *self.former)[:MAX_FORMER]
            self.lost = self._introduced = False
            self._unsent.update(self._held)
            for pairs in (self._announced, self._idle, self._retiring):
                pairs.clear()
            return former

    def touch(self, rule_id: str, ident: str, lease: str, since: float) -> bool:
        """The socket of this lease was heard of, at a moment on the monotonic clock; False when nobody holds it."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            if lease in leases:
                leases[lease] = since
            return lease in leases

    def first_socket(self, rule_id: str, ident: str) -> str | None:
        """The lease of a socket that was taken, or heard of, longest ago; None when no socket has any."""
        with self._lock:
            leases = self._held.get((rule_id, ident), {})
            return min((lease for lease in leases if lease.startswith(SOCKET)), key=leases.__getitem__, default=None)

    def doubt(self, pairs: Iterable[Pair]) -> None:
        """Redis may not know the leases of these pairs: send them (again)."""
        with self._lock:
            self._unsent.update(pairs)

    def newest(self, most: int) -> list[tuple[Pair, str]]:
        """The last lease of each of up to ``most`` pairs that Redis knows, of those that had one taken last."""
        with self._lock:
            known = (pair for pair in reversed(self._held) if pair not in self._unsent)
            return [(pair, next(reversed(self._held[pair]))) for pair in islice(known, most)]

    def last_released(self) -> list[tuple[Pair, str]]:
        """Leases that Redis has given back under the present uid, the last one first."""
        with self._lock:
            last = [one for one in reversed(self._settled) if one.uid == self.uid]
            return [((one.rule_id, one.ident), one.lease) for one in last if not self.has(*one[1:4])]

    def announce_again(self) -> None:
        """Redis has lost what was announced: announce, and send, all that is held; the rest when it is taken again."""
        with self._lock:
            self._unsent.update(self._held)
            for pairs in (self._announced, self._idle, self._retiring):
                pairs.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether Redis may not know all that is held."""
        return bool(self._unsent)

    @property
    def has_announced(self) -> bool:
        """Whether Redis knows where this process may hold leases, as far as we know."""
        return bool(self._announced)

    def sent_pairs(self) -> list[Pair]:
        """Those of which Redis knows what is held, as far as we know."""
        with self._lock:
            return [pair for pair in self._held if pair not in self._unsent]

    def take_unsent(self, most: int) -> list[Pair]:
        """Up to ``most`` unsent pairs; ``doubt`` what fails."""
        with self._lock:
            self._unsent.intersection_update(self._held)
            taken = list(islice(self._unsent, most))
            self._unsent.difference_update(taken)
            return taken

    def telling(self, pairs: Iterable[Pair]) -> dict[Pair, dict[str, float]]:
        """What is held of these pairs, each lease with its age in seconds: from now on Redis may know of it."""
        with self._lock:
            now = time.monotonic()
            held = {pair: self._held[pair] for pair in pairs if pair in self._held}
            self._untold.difference_update((pair, lease) for pair, leases in held.items() for lease in leases)
            return {pair: {lease: now - since for lease, since in leases.items()} for pair, leases in held.items()}

    def sent(self, uid: str, pair: Pair, leases: Mapping[str, float]) -> None:
        """Redis has these leases now; what was dropped while they travelled is owed."""
        with self._lock:
            if uid != self.uid:
                self._unsent.add(pair)
            held = self._held.get(pair, {})
            self._owed.update(Owed(uid, *pair, lease, again=True) for lease in leases if lease not in held)

    def owed(self) -> list[Owed]:
        """Releases that are owed; ``settle`` those that arrive."""
        with self._lock:
            return list(self._owed)

    def suspect(self, pairs: Iterable[Pair]) -> None:
        """Compare these pairs with Redis later."""
        with self._lock:
            self._suspect.update(dict.fromkeys(pairs, time.monotonic()))

    def take_suspect(self, seconds: float, most: int) -> list[Pair]:
        """Up to ``most`` pairs that have been suspect for ``seconds``."""
        with self._lock:
            ripe = time.monotonic() - seconds
            taken = list(islice((pair for pair, since in self._suspect.items() if since <= ripe), most))
            for pair in taken:
                del self._suspect[pair]
            return taken

    def retire(self, most: int) -> list[Pair]:
        """Up to ``most`` announced pairs of which nothing was held at the last call either; then call ``retired``."""
        with self._lock:
            idle = self._announced.difference(self._held, ((owed.rule_id, owed.ident) for owed in self._owed))
            room = max(0, most - len(self._retiring))
            self._retiring.update(islice(idle & self._idle, room))
            self._announced -= self._retiring
            self._idle = idle - self._retiring
            return list(self._retiring)

    def retired(self, pairs: Iterable[Pair]) -> None:
        """Redis has forgotten these pairs; one that was announced again meanwhile may be among them: send it."""
        with self._lock:
            self._retiring.difference_update(pairs)
            again = self._announced.intersection(pairs)
            self._announced -= again
            self._unsent |= again
