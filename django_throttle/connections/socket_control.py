"""What the agent does with the open sockets: carries out control messages, and reports which sockets are active."""

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

HEARD_SECONDS: Final = 10.0  # between two reports of active sockets: the precision of ``evict_idle``
IDLE: Final = "evict_idle"

Heard = dict[str, float]  # lease: when its socket last received a frame, on the monotonic clock


class Activity:
    """Reports to the store which sockets have received a frame since the last report; used by one thread.

    One command, in batches, for each ident with such a socket; none where no rule evicts idle sockets.
    """

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self._rules: frozenset[str] = frozenset()
        self._reported = 0.0  # up to when the store knows, under these rules

    def __call__(self) -> None:
        """Report. Raises StoreError."""
        rules = frozenset(rule.id for rule in rulebook.current().rules if rule.at_limit == IDLE and rule.enabled)
        if rules != self._rules:
            self._rules, self._reported = rules, 0.0
        now = time.monotonic()
        if rules:
            # Each batch is sent, also when one node of a Cluster does not answer.
            raise_first([error for some in batches(self._heard().items()) for error in self._report(some, now)])
        self._reported = now

    def _heard(self) -> dict[LeaseKey, Heard]:
        found: dict[LeaseKey, Heard] = defaultdict(dict)
        for socket in self.sockets.all():
            if socket.last_received >= self._reported:
                for lease in socket.leases:
                    for pair in lease.lease_keys:
                        if pair[0] in self._rules:
                            found[pair][lease.id] = socket.last_received
        return found

    def _report(self, some: list[tuple[LeaseKey, Heard]], now: float) -> list[Exception]:
        for pair, heard in some:
            for lease, since in heard.items():
                self.store.leases.touch(*pair, lease, since)
        if not self.store.is_remote:  # in memory, that was all
            return []
        return errors_of(self.store.pipeline([_call(self.store, pair, heard, now) for pair, heard in some]))


def _call(store: RedisStore, pair: LeaseKey, heard: Heard, now: float) -> tuple[str, tuple[str], list[object]]:
    args: list[object] = [store.now_arg(), store.leases.uid]
    for lease, since in heard.items():
        args += (lease, round((now - since) * 1_000_000))
    return "touch", (store.key(*pair),), args


# The store knows of a lease before this process does: seconds that a message waits for its socket.
SOCKET_TIMEOUT: Final = 10.0
_DETAILS: Final = {
    EVICTED: gettext_noop("Another connection has taken the place of this one."),
    CLOSED: gettext_noop("This connection was closed by an operator."),
}


class SocketControl:
    """The control messages of one store, carried out by one thread: the agent's."""

    def __init__(self, store: AnyStore, sockets: OpenSockets = open_sockets) -> None:
        self.store, self.sockets = store, sockets
        self.reporter = SocketReporter(store, sockets)
        # For the socket of a lease, which may not be there yet; until when.
        self._waiting: dict[ControlMessage, float] = {}

    def __call__(self) -> None:
        """Fetch messages and carry them out: one command, or none where no socket is open. Raises StoreError."""
        self.store.control.resend()
        prepaid = self.store.local_limits.prepaid
        if not (
            len(self.sockets) or len(self.store.leases) or len(prepaid) or self._waiting or self.reporter.is_wanted
        ):
            return
        self.carry_out(self.store.control.fetch())
        self.reporter.write()

    def carry_out(self, given: Mapping[ControlMessage, float]) -> None:
        """Carry out these messages; one that is invalid here is ignored. Raises StoreError."""
        self._close_leases(message for message in given if message.kind == CLOSE and message.lease)
        about = {message: at for message, at in given.items() if message.kind in (CLOSE, RESET) and message.tag}
        if about:
            self._about_idents(about)
        wanted = {message.socket: message for message in given if message.kind == CLOSE and message.socket}
        if wanted:
            for socket in self.sockets.all():
                if message := wanted.get(socket.id):
                    _close(socket, message)
        for message in given:
            if message.kind == REPORT:
                self.reporter.want(message)

    def evict(self, leases: Iterable[str]) -> None:
        """These leases were taken away, and the message to close their sockets has not arrived."""
        self._close_leases(evicted(leases))

    def _close_leases(self, messages: Iterable[ControlMessage]) -> None:
        now = time.monotonic()
        waiting = {**dict.fromkeys(messages, now + SOCKET_TIMEOUT), **self._waiting}
        self._waiting = {}
        if not waiting:
            return
        holders = {lease.id: socket for socket in self.sockets.all() for lease in socket.leases}
        is_late = any(until <= now for until in waiting.values())
        unreleased = self.store.leases.unreleased() if is_late else ()  # a handshake may be slow
        for message, until in waiting.items():
            if socket := holders.get(message.lease):
                _close(socket, message)
            elif until > now or message.lease in unreleased:
                self._waiting[message] = until

    def _about_idents(self, given: Mapping[ControlMessage, float]) -> None:
        by_tag = {message.tag: message for message in sorted(given, key=lambda message: message.kind == CLOSE)}
        if any(message.kind == RESET for message in by_tag.values()):
            self.store.refusal_cache.clear()  # or a remembered refusal would refuse a socket
            reset = {tag for tag, message in by_tag.items() if message.kind == RESET}
            self.store.local_limits.prepaid.forget(lambda budget: self.store.control.ident_hash(budget.ident) in reset)
        for socket in self.sockets.all():
            for tag in self.reporter.idents(socket).tags:
                message = by_tag.get(tag)
                if message and socket.opened <= given[message]:  # a socket that was opened since is not meant
                    socket.reset() if message.kind == RESET else _close(socket, message)


def _close(socket: OpenSocket, message: ControlMessage) -> None:
    why = message.why if message.why in _DETAILS else CLOSED
    payload: dict[str, object] = notice_payload(why, _DETAILS[why])
    payload.update(rule=message.rule or None, limit=message.limit or None)
    socket.close(socket.close_code(why), why, payload)
