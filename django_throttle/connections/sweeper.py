"""Takes dead processes out of Redis a share at a time, so that whoever sweeps goes on with what else it does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from django_throttle.connections.ledger import Ledger

SHARE_SECONDS: Final = 0.3  # of a turn; the next one comes before a claim ends


class Sweeper:
    """What is left to sweep, and the next share of it; used by one thread."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._waiting: dict[str, Iterator[int]] = {}

    def take_on(self, uids: Iterable[str]) -> None:
        """These are ours to sweep."""
        for uid in uids:
            self._waiting.setdefault(uid, self.ledger.sweeping(uid))

    def add(self, name: str, batches: Iterator[int]) -> None:
        """Something else to sweep, which frees so many leases a batch."""
        self._waiting.setdefault(name, batches)

    @property
    def is_busy(self) -> bool:
        """Whether anything is left."""
        return bool(self._waiting)

    def go_on(self, seconds: float = SHARE_SECONDS) -> int:
        """Sweep for so long, and a batch more; returns the number of leases freed. Raises StoreError.

        A batch of each in turn, so that no claim ends while another one is swept. After an error whoever claims it
        next begins anew: that does nothing twice.
        """
        freed, until = 0, time.monotonic() + seconds
        while self._waiting:
            uid = next(iter(self._waiting))
            batches = self._waiting.pop(uid)
            some = next(batches, None)
            if some is not None:
                freed += some
                self._waiting[uid] = batches
            if time.monotonic() > until:
                break
        return freed
