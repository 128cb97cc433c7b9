"""This process tells Redis how many members it has in groups: what changed at once, all of it while it lives.

One command for 500 groups (in a Cluster for each slot): 20 every 7 seconds for 10,000 groups, and none where no rule
counts publications.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.connections.ledger import batches, check, errors_of
from django_throttle.publishing.members import Members, members
from django_throttle.publishing.sizes import wanted
from django_throttle.stores.groups import tell_calls
from django_throttle.stores.redis import RedisStore

TELL_SECONDS: Final = 0.5
TIMES: Final = 3  # in the time after which a silent process is dead


class Teller:
    """Tells it; used by one thread."""

    def __init__(self, store: RedisStore, own: Members = members) -> None:
        self.store, self.own = store, own
        self._whole_at = 0.0  # when all is told again, on the monotonic clock; 0.0 before the first time

    def __call__(self) -> None:
        """Tell what changed, or all of it when its time has come. Raises StoreError, and it is told later."""
        if not wanted(rulebook.current()):
            self._whole_at = 0.0
            self.own.take_changed()
            return
        now = time.monotonic()
        whole = now >= self._whole_at
        self._tell(self.own.take_changed(whole=whole).items())
        if whole:
            self._whole_at = now + conf().PROCESS_TTL / TIMES

    def leave(self) -> None:
        """This process ends: it has nobody in any group."""
        if self._whole_at:
            self._tell((group, 0) for group in self.own.take_changed(whole=True))

    def _tell(self, counts: Iterable[tuple[str, int]]) -> None:
        """A batch that fails, as a node of a Cluster is away, keeps none of the others."""
        groups, told = dict(counts), set[str]()
        failed: list[Exception] = []
        try:
            for batch in batches(groups.items()):
                calls = tell_calls(self.store, self.own.process, dict(batch), conf().PROCESS_TTL)
                errors = errors_of(self.store.send(calls))
                failed += errors
                told.update(group for group, _ in batch if not errors)
        finally:
            self.own.doubt(group for group in groups if group not in told)
        check(failed)
