"""Which sockets of this process have become too many, because a limit is lower now than when they were opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_throttle.sockets.live import live
from django_throttle.stores import get_store
from django_throttle.stores.redis import RedisStore


class Hold(NamedTuple):
    """A slot under a rule: its id and the ident, its name, and the limit that holds now.

    ``oldest`` is True where a newcomer closes an old socket, which then goes first here too.
    """

    rule_id: str
    ident: str
    rule: str
    limit: int
    oldest: bool = False


def surplus(holds: Sequence[Hold]) -> dict[Hold, frozenset[str]]:
    """The leases of this process that have to go, by the order of all processes' together. Raises StoreError."""
    store = get_store()
    if not isinstance(store, RedisStore):
        return {hold: _here(hold) for hold in holds}
    uid = store.leases.uid
    calls = [("surplus", (store.key(hold.rule_id, hold.ident),), (uid, hold.limit, int(hold.oldest))) for hold in holds]
    return {hold: _leases(reply) for hold, reply in zip(holds, store.pipeline(calls), strict=True)}


def _leases(reply: Any) -> frozenset[str]:
    if isinstance(reply, Exception):
        return frozenset()
    return frozenset([lease.decode() if isinstance(lease, bytes) else lease for lease in reply])


def _here(hold: Hold) -> frozenset[str]:
    pair = (hold.rule_id, hold.ident)
    found = [(one.opened, lease.id) for one in live.everyone() for lease in one.leases if pair in lease.holds]
    found.sort(reverse=not hold.oldest)
    return frozenset([lease for _, lease in found[: max(0, len(found) - hold.limit)]])
