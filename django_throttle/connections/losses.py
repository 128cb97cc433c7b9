"""What a server loses as it crashes is what it got last: a lease that came, or the release of one that went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_throttle.connections.holdings import MOST_SETTLED
from django_throttle.connections.ledger import Ledger

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


def has_lost(store: RedisStore, ledger: Ledger) -> bool:
    """Whether the last lease that Redis was told of has gone, or the last that it gave back is there again.

    On each node of a Cluster, as far as one of the last hundred is there. One command for each; none when there was
    nothing to tell. What cannot be asked was not lost. Raises StoreError.
    """
    leases, asked = store.leases, dict[tuple[object, bool], tuple[str, str]]()
    for is_held, last in ((True, leases.newest(MOST_SETTLED)), (False, leases.last_released())):
        for pair, lease in last:
            key = store.key(*pair)
            asked.setdefault((store.link.node_of(key), is_held), (key, lease))
    found = ledger.holds(leases.uid, asked.values()) if asked else []
    return any(there is not None and there != is_held for (_, is_held), there in zip(asked, found, strict=True))
