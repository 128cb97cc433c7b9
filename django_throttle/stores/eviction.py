"""Eviction: a socket makes room for another; the lease goes at once, the socket when its process is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_throttle.core.commands import Charge
from django_throttle.core.control import Evict, Order, closing, evicted
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import LongErrand
from django_throttle.stores.transport import Call, script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


BATCH: Final = 500  # commands in one pipeline
LATE_MS: Final = 60_000  # by then a command that timed out has arrived, or never will


class Doubt(NamedTuple):
    """An eviction in doubt; ``withdraws`` is the lease of a newcomer who has given up, empty where it stays."""

    charge: Charge
    withdraws: str

    def orders(self, lost: Iterable[str | bytes]) -> tuple[Order, ...]:
        """To close what has lost its slot."""
        leases = [lease.decode() if isinstance(lease, bytes) else lease for lease in lost]
        return evicted(leases, self.charge.rule.name, self.charge.rule.plan.limit)


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
                self._told(link.send_all(self._tell(), link.seconds / 2))
        return taken

    async def arun(self) -> bool:
        link = self.store.link
        taken = bool(self.finish(await link.asend_all(self.calls)))
        if self.orders:
            with suppress(Exception):
                self._told(await link.asend_all(self._tell(), link.seconds / 2))
        return taken

    def read(self, replies: Sequence[Any]) -> bool:
        taken, *found = replies[-1]
        names = [name.decode() if isinstance(name, bytes) else name for name in found]
        victims = zip(names[::2], names[1::2], strict=True)
        self.orders = self.store.orders.keep(closing(self.command.charge, victims))
        if self.orders:
            self.store.evictions.doubt(self.command, withdraws=False)
        if taken:
            rule, ident, _ = self.command.charge
            self.store.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(taken)

    def give_up(self) -> None:
        rule, ident, _ = self.command.charge
        self.store.leases.owe(rule.id, ident, self.command.lease, self.uid)
        self.store.evictions.doubt(self.command, withdraws=True)

    def _tell(self) -> list[Call]:
        return self.store.orders.calls(self.orders)

    def _told(self, replies: Sequence[Any]) -> None:
        self.store.orders.sent(self.orders, replies)
        if not any(isinstance(reply, Exception) for reply in replies):
            self.store.evictions.settle(self.command)


class Evictions:
    """Those of which nobody may have been told; the agent looks who has lost a slot, and has every process hear of it.

    Safe to use from any thread.
    """

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._doubts: dict[tuple[str, ...], Doubt] = {}

    def doubt(self, command: Evict, *, withdraws: bool) -> None:
        """It may have been carried out. A newcomer who knows nothing of that withdraws."""
        with self._lock:
            self._doubts[_name(command)] = Doubt(command.charge, command.lease if withdraws else "")

    def settle(self, command: Evict) -> None:
        """Whoever lost a slot to it has been told."""
        with self._lock:
            self._doubts.pop(_name(command), None)

    def look(self) -> None:
        """One command for each in doubt; those that fail are looked at again. Raises StoreError."""
        with self._lock:
            doubts = dict(islice(self._doubts.items(), BATCH))
        if not doubts:
            return
        replies = self.store.pipeline([self._question(doubt) for doubt in doubts.values()])
        answered = {
            name: reply for name, reply in zip(doubts, replies, strict=True) if not isinstance(reply, Exception)
        }
        if not self._tell(order for name, lost in answered.items() for order in doubts[name].orders(lost)):
            answered = {}
        with self._lock:
            for name, doubt in doubts.items():
                if self._doubts.get(name) is doubt:
                    del self._doubts[name]
                    if (
                        name not in answered
                    ):  # behind the others, so that a node that is away keeps none of them waiting
                        self._doubts[name] = doubt

    def _question(self, doubt: Doubt) -> tuple[str, tuple[str], tuple[str, int]]:
        return "withdraw", (self.store.key(doubt.charge.rule.id, doubt.charge.ident),), (doubt.withdraws, LATE_MS)

    def _tell(self, orders: Iterable[Order]) -> bool:
        """Whether Redis has all of them."""
        kept = self.store.orders.keep(dict.fromkeys(orders))
        replies = self.store.send(self.store.orders.calls(kept))
        self.store.orders.sent(kept, replies)
        return not any(isinstance(reply, Exception) for reply in replies)


def _name(command: Evict) -> tuple[str, ...]:
    return command.charge.rule.id, command.charge.ident, command.lease
