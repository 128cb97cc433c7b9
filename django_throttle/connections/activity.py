"""Where the socket that is silent for longest makes room, the store is told which ones were heard of."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Final

from django_throttle import rulebook
from django_throttle.connections.ledger import batches, check, errors_of
from django_throttle.connections.registry import Pair
from django_throttle.sockets.live import Live, live
from django_throttle.stores.base import Store
from django_throttle.stores.redis import RedisStore

HEARD_SECONDS: Final = 10.0  # between two times: so exactly is it known who is silent for longest
IDLE: Final = "evict_idle"

Heard = dict[str, float]  # lease: when its socket was heard of, on the monotonic clock


class Activity:
    """Tells it of those that were heard of since the last time; used by one thread.

    One command, in batches, for each ident with such a socket. None where no rule asks for it.
    """

    def __init__(self, store: Store, sockets: Live = live) -> None:
        self.store, self.sockets = store, sockets
        self._rules: frozenset[str] = frozenset()
        self._told = 0.0  # what was heard before that is known, under these rules

    def __call__(self) -> None:
        """Tell it. Raises StoreError."""
        rules = frozenset(rule.id for rule in rulebook.current().rules if rule.at_limit == IDLE and rule.enabled)
        if rules != self._rules:
            self._rules, self._told = rules, 0.0
        now = time.monotonic()
        if rules:
            # Each batch is told, also when one node of a Cluster is away.
            check([error for some in batches(self._heard().items()) for error in self._tell(some, now)])
        self._told = now

    def _heard(self) -> dict[Pair, Heard]:
        found: dict[Pair, Heard] = defaultdict(dict)
        for socket in self.sockets.everyone():
            if socket.heard >= self._told:
                for lease in socket.leases:
                    for pair in lease.holds:
                        if pair[0] in self._rules:
                            found[pair][lease.id] = socket.heard
        return found

    def _tell(self, some: list[tuple[Pair, Heard]], now: float) -> list[Exception]:
        for pair, heard in some:
            for lease, since in heard.items():
                self.store.leases.touch(*pair, lease, since)
        if not isinstance(self.store, RedisStore):  # in memory, that was all
            return []
        return errors_of(self.store.pipeline([_call(self.store, pair, heard, now) for pair, heard in some]))


def _call(store: RedisStore, pair: Pair, heard: Heard, now: float) -> tuple[str, tuple[str], list[Any]]:
    args: list[Any] = [store.now_arg(), store.leases.uid]
    for lease, since in heard.items():
        args += (lease, round((now - since) * 1_000_000))
    return "touch", (store.key(*pair),), args
