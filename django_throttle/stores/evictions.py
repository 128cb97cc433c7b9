"""A socket makes room for another: its lease goes in the same moment, the socket itself when its process has heard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django_throttle.connections.registry import Registry
from django_throttle.core.orders import Evict, Order, closing
from django_throttle.stores.errands import LongErrand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


class EvictErrand(LongErrand):
    """Takes the slot first, then gives the orders: should that fail, they are given later, and the newcomer stays."""

    __slots__ = ("command", "orders", "uid")

    def __init__(self, store: RedisStore, command: Evict) -> None:
        super().__init__(store)
        self.command = command
        self.uid = store.leases.uid
        self.orders: tuple[Order, ...] = ()
        rule, ident, _ = command.charge
        args = (store.now_arg(), self.uid, command.lease, store.lease_ttl_ms, rule.plan.limit)
        self.calls.append(Call(script("evict"), (store.key(rule.id, ident),), args, derives=True))

    def run(self) -> bool:
        link = self.store.link
        taken = bool(self.finish(link.send_all(self.calls)))
        if self.orders:
            with suppress(Exception):
                self.store.orders.sent(self.orders, link.send_all(self._tell(), link.seconds / 2))
        return taken

    async def arun(self) -> bool:
        link = self.store.link
        taken = bool(self.finish(await link.asend_all(self.calls)))
        if self.orders:
            with suppress(Exception):
                self.store.orders.sent(self.orders, await link.asend_all(self._tell(), link.seconds / 2))
        return taken

    def read(self, replies: Sequence[Any]) -> bool:
        taken, *found = replies[-1]
        names = [name.decode() if isinstance(name, bytes) else name for name in found]
        victims = zip(names[::2], names[1::2], strict=True)
        self.orders = self.store.orders.keep(closing(self.command.charge, victims))
        if taken:
            rule, ident, _ = self.command.charge
            self.store.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(taken)

    def give_up(self) -> None:
        rule, ident, _ = self.command.charge
        self.store.leases.owe(rule.id, ident, self.command.lease, self.uid)

    def _tell(self) -> list[Call]:
        return self.store.orders.calls(self.orders)


def evict_here(leases: Registry, command: Evict) -> tuple[bool, tuple[Order, ...]]:
    """The same where this process has all leases; the orders are to be given."""
    rule, ident, _ = command.charge
    pair, limit = (rule.id, ident), rule.plan.limit
    victims: list[tuple[str, str]] = []
    while leases.count(*pair) >= limit and (lease := leases.first_socket(*pair)):
        leases.drop(*pair, lease)
        victims.append((leases.uid, lease))
    taken = leases.count(*pair) < limit
    if taken:
        leases.hold(*pair, command.lease)
    return taken, closing(command.charge, victims)
