"""What this process is ordered to do with its sockets, by itself or by another one, is done."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django_throttle.connections.reports import Reporter
from django_throttle.core.orders import CLOSE, CLOSED, EVICTED, REPORT, RESET, Order, evicted
from django_throttle.sockets.frames import notice
from django_throttle.sockets.live import Live, Socket, live
from django_throttle.stores.base import Store

# The store knows of a lease before this process does: so long an order waits for it.
PATIENCE: Final = 10.0
_SAID: Final = {
    EVICTED: "Another connection has taken the place of this one.",
    CLOSED: "This connection was closed by an operator.",
}


class Duties:
    """The orders of one store, carried out by one thread: the agent's."""

    def __init__(self, store: Store, sockets: Live = live) -> None:
        self.store, self.sockets = store, sockets
        self._reporter = Reporter(store, sockets)
        self._early: dict[Order, float] = {}  # about a lease whose socket is not there yet, or no more; until when

    def __call__(self) -> None:
        """Fetch orders and carry them out: one command, or none where no socket is open. Raises StoreError."""
        self.store.orders.resend()
        if not (len(self.sockets) or len(self.store.leases) or self._early or self._reporter.is_wanted):
            return
        self.carry_out(self.store.orders.fetch())
        self._reporter.keep_up()

    def carry_out(self, given: Mapping[Order, float]) -> None:
        """Do what is ordered; one that makes no sense here is passed over. Raises StoreError."""
        self._close_leases(order for order in given if order.kind == CLOSE and order.lease)
        about = {order: at for order, at in given.items() if order.kind in (CLOSE, RESET) and order.tag}
        if about:
            self._about_idents(about)
        wanted = {order.socket: order for order in given if order.kind == CLOSE and order.socket}
        if wanted:
            for socket in self.sockets.everyone():
                if order := wanted.get(socket.id):
                    _close(socket, order)
        for order in given:
            if order.kind == REPORT:
                self._reporter.want(order)

    def gone(self, leases: Iterable[str]) -> None:
        """These leases were taken away, and the order to close their sockets has not been heard."""
        self._close_leases(evicted(leases))

    def _close_leases(self, orders: Iterable[Order]) -> None:
        now = time.monotonic()
        waiting = {**dict.fromkeys(orders, now + PATIENCE), **self._early}
        self._early = {}
        if not waiting:
            return
        holders = {lease.id: socket for socket in self.sockets.everyone() for lease in socket.leases}
        is_late = any(until <= now for until in waiting.values())
        taken = self.store.leases.taken() if is_late else ()  # a handshake may wait for its turn
        for order, until in waiting.items():
            if socket := holders.get(order.lease):
                _close(socket, order)
            elif until > now or order.lease in taken:
                self._early[order] = until

    def _about_idents(self, given: Mapping[Order, float]) -> None:
        by_tag = {order.tag: order for order in sorted(given, key=lambda order: order.kind == CLOSE)}
        if self.store.denials is not None and any(order.kind == RESET for order in by_tag.values()):
            self.store.denials.clear()  # or a socket would be refused by what the process remembers
        for socket in self.sockets.everyone():
            for tag in self._reporter.known(socket).tags:
                order = by_tag.get(tag)
                if order and socket.opened <= given[order]:  # who has come since is not meant
                    socket.reset() if order.kind == RESET else _close(socket, order)


def _close(socket: Socket, order: Order) -> None:
    why = order.why if order.why in _SAID else CLOSED
    payload: dict[str, Any] = notice(why, _SAID[why])
    payload.update(rule=order.rule or None, limit=order.limit or None)
    socket.close(socket.close_code(why), why, payload)
