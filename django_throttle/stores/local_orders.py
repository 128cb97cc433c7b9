"""Orders where there is but one process; and how orders are named and timed wherever they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from django_throttle.core.key import ident_tag
from django_throttle.core.orders import Order
from django_throttle.forks import in_child

MOST: Final = 10_000  # that wait for one process

Given = dict[Order, float]  # when each was given, on the monotonic clock: then, or a round trip later


class LocalOrders:
    """Those of a store in memory: there is but one process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Order, float]] = deque(maxlen=MOST)
        in_child(self, lambda orders: orders._waiting.clear())

    def give(self, orders: Iterable[Order]) -> None:
        """They are for this process."""
        now = time.monotonic()
        self._waiting.extend((order, now) for order in tagged(orders, self.tag))

    def resend(self) -> None:
        """There is nowhere to send them to."""

    def fetch(self) -> Given:
        """What has been given since the last time."""
        return dict([self._waiting.popleft() for _ in range(len(self._waiting))])

    @staticmethod
    def tag(ident: str) -> str:
        """How an order names an ident."""
        return ident_tag(ident, b"")


def tagged(orders: Iterable[Order], tag: Callable[[str], str]) -> tuple[Order, ...]:
    """The same, as they travel: idents are named by their tags."""
    return tuple([one._replace(ident="", tag=tag(one.ident)) if one.ident else one for one in orders])
