"""What was charged goes back: another slot of a Cluster has refused, or the answer was none that counts."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from django_throttle.core.command import Paid, Refund
from django_throttle.stores.errands import CALENDAR, Errand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import CODES, script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

REFUND: Final = Struct(">Bddddddd").pack


class RefundErrand(Errand):
    """Sent once: nobody knows whether one that failed was carried out, and giving back twice would be too much."""

    __slots__ = ("command",)

    def __init__(self, store: RedisStore, command: Refund) -> None:
        super().__init__(store)
        self.command = command
        if not command.locally:
            paid = command.paid
            for places in store.by_slot([one.charge for one in paid]):
                self.calls.append(refund_call(store, [paid[place] for place in places]))

    def read(self, replies: Sequence[Any]) -> int:
        return self.store.fallback.refund(self.command) if self.command.locally else sum(map(int, replies))


def refund_call(store: RedisStore, paid: Sequence[Paid]) -> Call:
    """The call that gives these back, all of them of one slot."""
    keys, packed = [], []
    for (rule, ident, cost), at, reset in paid:
        plan = rule.plan
        bounds = (0, 0, 0) if plan.algorithm == CALENDAR else plan[2:]
        keys.append(store.key(rule.id, ident))
        packed.append(REFUND(CODES[plan.algorithm], cost, plan.limit, *bounds, at, reset))
    return Call(script("refund"), keys, (store.now_arg(), b"".join(packed)))
