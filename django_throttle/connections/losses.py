"""Notices that a server has lost what it was told: by a crash, a start from an old copy, a failover, or eviction."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from django_throttle.connections.holdings import MOST_SETTLED
from django_throttle.connections.ledger import Ledger, Mark

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

SPREAD: Final = 64  # names of marks, of which every node of a Cluster has one


class Loss(NamedTuple):
    """What was seen: writes are lost; keys were evicted, or are soon; marks of servers that went back in time."""

    writes: bool
    evicted: bool
    older: tuple[str, ...]


class Losses:
    """Looks at each server once a beat, with few commands however much is held; used by one thread.

    A mark is left on each server. Where an older one is found, or none, the server has gone back in time. One that has
    another run id was started anew and may lack what came last. So may one that lacks the last lease that it was told
    of, or has the one that it gave back last: the last resort where INFO is forbidden.
    """

    def __init__(self, store: RedisStore, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        own = secrets.token_urlsafe(9)
        self._names = [f"{store.prefix}:{{m{number}}}:mark:{own}" for number in range(SPREAD)]
        self._last: dict[str, Mark] = {}  # what each server has said, with the mark that it has now
        self._mark = 0

    def look(self) -> Loss:
        """What was lost since the last time; nothing at the first time. Raises StoreError."""
        self._mark += 1
        names = list({self.store.link.node_of(name): name for name in reversed(self._names)}.values())
        now = zip(names, self.ledger.marks(names, self._mark), strict=True)
        writes = evicted = False
        older = []
        for name, found in now:
            last = self._last.get(name)
            if found is None:
                continue
            self._last[name] = found._replace(found=self._mark)
            if last is not None:
                has_evicted = not found.evicted or found.evicted != last.evicted
                is_evicted = has_evicted and found.found < 0 and found.run_id == last.run_id  # the mark itself
                older += [name] * (found.found < last.found and not is_evicted)
                writes |= found.run_id != last.run_id
                evicted |= found.is_tight or has_evicted
        writes = writes or bool(older) or (not evicted and self._has_lost_the_last())
        return Loss(writes, evicted, tuple(older))

    def leave(self) -> None:
        """This process ends. Raises StoreError."""
        self.store.pipeline([("forget", (name,), ()) for name in self._last])

    def _has_lost_the_last(self) -> bool:
        """One of each node of a Cluster, as far as one of the last hundred is there."""
        leases, asked = self.store.leases, dict[tuple[object, bool], tuple[str, str]]()
        for is_held, last in ((True, leases.newest(MOST_SETTLED)), (False, leases.last_released())):
            for pair, lease in last:
                key = self.store.key(*pair)
                asked.setdefault((self.store.link.node_of(key), is_held), (key, lease))
        found = self.ledger.holds(leases.uid, asked.values()) if asked else []
        return any(there is not None and there != is_held for (_, is_held), there in zip(asked, found, strict=True))
