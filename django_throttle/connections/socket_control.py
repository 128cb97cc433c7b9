"""Work of the agent for open sockets: executes control messages, and reports which sockets are active."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from django_throttle import rulebook
from django_throttle.connections.overview import SocketReporter
from django_throttle.core.control_messages import CLOSE, CLOSED, EVICTED, REPORT, RESET, ControlMessage, evicted
from django_throttle.core.texts import gettext_noop
from django_throttle.local.leases import LeaseKey
from django_throttle.local.open_sockets import OpenSocket, OpenSockets, notice_payload, open_sockets
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.transport import batches

ACTIVITY_SECONDS: Final = 10.0  # between two reports of active sockets, the precision of ``evict_idle``
IDLE: Final = "evict_idle"

ActiveLeases = dict[str, float]  # lease: time of the last frame of its socket, in monotonic seconds


class Activity:
    """Reports to the store which sockets have received a frame since the last report. Used by one thread.

    It takes one command for each ident with such a socket, sent in batches, or none if no rule evicts idle sockets.
    """

    def __init__(self, store: AnyStore) -> None:
        self.store = store
        self._rules: frozenset[str] = frozenset()
        self._reported = 0.0  # time of the last report under these rules

    def __call__(self) -> None:
        """Report active sockets. Raise StoreError."""
        rules = frozenset(rule.id for rule in rulebook.current().rules if rule.at_limit == IDLE and rule.enabled)
        if rules != self._rules:
            self._rules, self._reported = rules, 0.0
        now = time.monotonic()
        if rules:
            # Send each batch, even if a node of a Cluster does not answer.
            raise_first(
                [error for batch in batches(self._active_leases().items()) for error in self._report(batch, now)]
            )
        self._reported = now

    def _active_leases(self) -> dict[LeaseKey, ActiveLeases]:
        leases_by_key: dict[LeaseKey, ActiveLeases] = defaultdict(dict)
        for socket in open_sockets.all():
            if socket.last_received >= self._reported:
                for lease in socket.leases:
                    for pair in lease.lease_keys:
                        if pair[0] in self._rules:
                            leases_by_key[pair][lease.id] = socket.last_received
        return leases_by_key

    def _report(self, batch: list[tuple[LeaseKey, ActiveLeases]], now: float) -> list[Exception]:
        for pair, active_leases in batch:
            for lease, last_received in active_leases.items():
                self.store.leases.touch(*pair, lease, last_received)
        if not self.store.is_remote:  # a memory store needs no report
            return []
        return errors_of(
            self.store.pipeline([_touch_call(self.store, pair, active_leases, now) for pair, active_leases in batch])
        )


def _touch_call(
    store: RedisStore, pair: LeaseKey, active_leases: ActiveLeases, now: float
) -> tuple[str, tuple[str], list[object]]:
    args: list[object] = [store.now_arg(), store.leases.uid]
    for lease, last_received in active_leases.items():
        args += (lease, round((now - last_received) * 1_000_000))
    return "touch", (store.key(*pair),), args


# Time that a message waits for its socket, as the store knows of a lease before this process does.
SOCKET_WAIT_SECONDS: Final = 10.0
_DETAILS: Final = {
    EVICTED: gettext_noop("Another connection has taken the place of this one."),
    CLOSED: gettext_noop("This connection was closed by an operator."),
}


class SocketControl:
    """Executes the control messages of a store, in the agent's thread."""

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self.reporter = SocketReporter(store, sockets)
        # Messages for leases without a socket yet, and the end of their wait in monotonic seconds.
        self._waiting: dict[ControlMessage, float] = {}

    def __call__(self) -> None:
        """Fetch messages and execute them: one command, or none if no socket is open. Raise StoreError."""
        self.store.control.resend()
        prepaid = self.store.local_limits.prepaid
        if not (
            len(self.sockets) or len(self.store.leases) or len(prepaid) or self._waiting or self.reporter.is_wanted
        ):
            return
        self.execute(self.store.control.fetch())
        self.reporter.write()

    def execute(self, messages: Mapping[ControlMessage, float]) -> None:
        """Execute messages. Ignore those that are invalid here. Raise StoreError."""
        self._close_leases(message for message in messages if message.kind == CLOSE and message.lease)
        for_idents = {
            message: at for message, at in messages.items() if message.kind in (CLOSE, RESET) and message.ident_hash
        }
        if for_idents:
            self._execute_for_idents(for_idents)
        by_socket_id = {message.socket: message for message in messages if message.kind == CLOSE and message.socket}
        if by_socket_id:
            for socket in self.sockets.all():
                if message := by_socket_id.get(socket.id):
                    _close(socket, message)
        for message in messages:
            if message.kind == REPORT:
                self.reporter.want(message)

    def evict(self, leases: Iterable[str]) -> None:
        """Close the sockets of evicted leases whose messages have not arrived."""
        self._close_leases(evicted(leases))

    def _close_leases(self, messages: Iterable[ControlMessage]) -> None:
        now = time.monotonic()
        waiting = {**dict.fromkeys(messages, now + SOCKET_WAIT_SECONDS), **self._waiting}
        self._waiting = {}
        if not waiting:
            return
        holders = {lease.id: socket for socket in self.sockets.all() for lease in socket.leases}
        has_expired = any(until <= now for until in waiting.values())
        unreleased = self.store.leases.unreleased() if has_expired else ()  # a handshake may be slow
        for message, until in waiting.items():
            if socket := holders.get(message.lease):
                _close(socket, message)
            elif until > now or message.lease in unreleased:
                self._waiting[message] = until

    def _execute_for_idents(self, messages: Mapping[ControlMessage, float]) -> None:
        by_hash = {
            message.ident_hash: message for message in sorted(messages, key=lambda message: message.kind == CLOSE)
        }
        if any(message.kind == RESET for message in by_hash.values()):
            self.store.refusal_cache.clear()  # a cached refusal could refuse a socket
            reset_hashes = {ident_hash for ident_hash, message in by_hash.items() if message.kind == RESET}
            self.store.local_limits.prepaid.forget(
                lambda budget: self.store.control.ident_hash(budget.ident) in reset_hashes
            )
        for socket in self.sockets.all():
            for ident_hash in self.reporter.idents(socket).hashes:
                message = by_hash.get(ident_hash)
                if message and socket.opened <= messages[message]:  # not sockets opened since
                    socket.reset() if message.kind == RESET else _close(socket, message)


def _close(socket: OpenSocket, message: ControlMessage) -> None:
    reason = message.reason if message.reason in _DETAILS else CLOSED
    payload: dict[str, object] = notice_payload(reason, _DETAILS[reason])
    payload.update(rule=message.rule or None, limit=message.limit or None)
    socket.close(socket.close_code(reason), reason, payload)
