"""Eviction: a socket makes room for another; its lease goes at once, the socket when its process is told."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import Any, Final, NamedTuple

from django_throttle.core.commands import Charge, ControlMessage, Evict, closing, evicted
from django_throttle.lifecycle import in_child
from django_throttle.stores.commands import LongCommand, RoundTrip
from django_throttle.stores.context import RedisContext
from django_throttle.stores.control import RedisControl
from django_throttle.stores.transport import Call, script

BATCH: Final = 500  # commands in one pipeline
LATE_MS: Final = 60_000  # by then a command that timed out has arrived, or never will


class Doubt(NamedTuple):
    """An eviction whose outcome is unknown; ``withdraws`` is the newcomer's lease where it gave up, else empty."""

    charge: Charge
    withdraws: str

    def closing(self, lost: Iterable[str | bytes]) -> tuple[ControlMessage, ...]:
        """The messages that close the sockets of these leases."""
        leases = [lease.decode() if isinstance(lease, bytes) else lease for lease in lost]
        return evicted(leases, self.charge.rule.name, self.charge.rule.plan.limit)


class Evictions:
    """Evictions of which the evicted may not have been told: the agent asks Redis who lost a slot, and tells them.

    Safe to use from any thread.
    """

    def __init__(self, context: RedisContext, control: RedisControl) -> None:
        self.context, self.control = context, control
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._doubts: dict[tuple[str, ...], Doubt] = {}

    def doubt(self, command: Evict, *, withdraws: bool) -> None:
        """The eviction may have been executed. ``withdraws`` when the newcomer was not told so, and gives up."""
        with self._lock:
            self._doubts[_name(command)] = Doubt(command.charge, command.lease if withdraws else "")

    def settle(self, command: Evict) -> None:
        """The evicted have been told."""
        with self._lock:
            self._doubts.pop(_name(command), None)

    def look(self) -> None:
        """Ask about each doubt, and tell the evicted; what fails is asked again. Raises StoreError."""
        with self._lock:
            doubts = dict(islice(self._doubts.items(), BATCH))
        if not doubts:
            return
        replies = self.context.pipeline([self._question(doubt) for doubt in doubts.values()])
        answered = [(doubt, lost) for doubt, lost in zip(doubts.values(), replies, strict=True) if type(lost) is list]
        closing = dict.fromkeys(message for doubt, lost in answered for message in doubt.closing(lost))
        settled = set() if self.control.send(self.control.keep(closing)) else {id(doubt) for doubt, _ in answered}
        with self._lock:
            for name, doubt in doubts.items():
                if self._doubts.get(name) is doubt:
                    del self._doubts[name]
                    if id(doubt) not in settled:  # last, so that a node that is away delays no other
                        self._doubts[name] = doubt

    def _question(self, doubt: Doubt) -> tuple[str, tuple[str], tuple[str, int]]:
        return "withdraw", (self.context.key(doubt.charge.rule.id, doubt.charge.ident),), (doubt.withdraws, LATE_MS)


def _name(command: Evict) -> tuple[str, ...]:
    return command.charge.rule.id, command.charge.ident, command.lease


class EvictCommand(LongCommand):
    """Takes the slot, then tells the evicted; where telling fails they are told later, and the newcomer stays."""

    __slots__ = ("command", "evicted", "evictions", "uid")

    def __init__(self, context: RedisContext, command: Evict, evictions: Evictions) -> None:
        super().__init__(context)
        self.command, self.evictions = command, evictions
        self.uid = context.leases.uid
        self.evicted: tuple[ControlMessage, ...] = ()
        rule, ident, _ = command.charge
        args = (context.now_arg(), self.uid, command.lease, context.lease_ttl_ms, rule.plan.limit)
        self.calls.append(Call(script("evict"), (context.key(rule.id, ident),), args, derives=True))

    def steps(self) -> Generator[RoundTrip, Sequence[Any], bool]:
        taken = bool(self.finish((yield RoundTrip(self.calls))))
        if self.evicted:
            with suppress(Exception):
                replies = yield RoundTrip(self._tell(), self.context.transport.seconds / 2)
                if not self.evictions.control.sent(self.evicted, replies):
                    self.evictions.settle(self.command)
        return taken

    def read(self, replies: Sequence[Any]) -> bool:
        taken, *found = replies[-1]
        names = [name.decode() if isinstance(name, bytes) else name for name in found]
        victims = zip(names[::2], names[1::2], strict=True)
        self.evicted = self.evictions.control.keep(closing(self.command.charge.rule, victims))
        if self.evicted:
            self.evictions.doubt(self.command, withdraws=False)
        if taken:
            rule, ident, _ = self.command.charge
            self.context.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(taken)

    def give_up(self) -> None:
        rule, ident, _ = self.command.charge
        self.context.leases.release_if_known(rule.id, ident, self.command.lease, self.uid)
        self.evictions.doubt(self.command, withdraws=True)

    def _tell(self) -> list[Call]:
        return self.evictions.control.calls(self.evicted)
