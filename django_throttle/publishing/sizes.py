"""How many members a group has, in all processes: this one's are counted now, the others' as they told a moment ago."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.core.command import CountMembers
from django_throttle.core.flow import Flow
from django_throttle.exceptions import StoreError
from django_throttle.publishing.members import Members, members
from django_throttle.sockets.background import spawn
from django_throttle.stores.base import Store
from django_throttle.stores.drive import arun

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
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[int]] = {}

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

    async def aof(self, group: str, store: Store) -> int:
        """The same on an event loop, where those who ask at the same time ask once."""
        if self._is_known(group, store):
            return await arun(self.of(group, store), store)
        here = (asyncio.get_running_loop(), group)
        asking = self._asking.get(here)
        if asking is None:
            asking = self._asking[here] = spawn(arun(self.of(group, store), store))
            asking.add_done_callback(lambda _: self._asking.pop(here, None))
        return await asyncio.shield(asking)  # whoever stops waiting leaves it to the others

    def at_least(self, group: str, store: Store) -> int:
        """The number of members as far as it is known here, without asking."""
        others = self._known[group].members if self._is_known(group, store) else 0
        return self.own.count(group) + others

    def _is_known(self, group: str, store: Store) -> bool:
        known = self._known.get(group)
        return known is not None and known.store is store and time.monotonic() < known.until

    def forget(self) -> None:
        """Ask anew for every group."""
        self._known.clear()


def wanted(snapshot: rulebook.Snapshot) -> bool:
    """Whether any rule counts publications: without one nobody is told, and nobody asks, how large groups are."""
    return any(rule.enabled and "publish" in rule.events for rule in snapshot.rules)


sizes = Sizes()
