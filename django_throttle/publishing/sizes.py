"""How many members a group has, in all processes: this one's are counted now, the others' as they told a moment ago."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.core.command import CountMembers
from django_throttle.core.flow import Flow
from django_throttle.exceptions import StoreError
from django_throttle.publishing.members import Members, members
from django_throttle.stores.base import Store

REMEMBERED_SECONDS: Final = 1.0
MOST: Final = 4096


class Others(NamedTuple):
    """What other processes had in a group, by this store, until when it is good."""

    store: Store
    members: int
    until: float


class Sizes:
    """Asks the store at most once a second for each group; what it said last holds while it is away."""

    def __init__(self, own: Members = members) -> None:
        self.own = own
        self._known: dict[str, Others] = {}

    def of(self, group: str, store: Store) -> Flow[int]:
        """The number of members; raises nothing of the store's."""
        now = time.monotonic()
        known = self._known.get(group)
        if known is None or known.store is not store:
            known = Others(store, 0, 0.0)
        if now >= known.until:
            try:
                told = yield CountMembers(group, self.own.process, conf().PROCESS_TTL)
            except StoreError:
                told = known.members
            known = Others(store, told or 0, now + REMEMBERED_SECONDS)
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[group] = known
        return self.own.count(group) + known.members

    def forget(self) -> None:
        """Ask anew for every group."""
        self._known.clear()


def wanted(snapshot: rulebook.Snapshot) -> bool:
    """Whether any rule counts publications: without one nobody is told, and nobody asks, how large groups are."""
    return any(rule.enabled and "publish" in rule.events for rule in snapshot.rules)


sizes = Sizes()
