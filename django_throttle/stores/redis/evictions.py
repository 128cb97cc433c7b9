"""Evictions: a socket of a full rule loses its slot to another at once, and is closed when its process hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, starmap
from threading import Lock
from typing import Any, Final

from django_throttle.core.commands import Evict
from django_throttle.core.control_messages import ControlMessage, closing, evicted
from django_throttle.runtime import in_child
from django_throttle.stores.redis.commands import LongCommand, Pipeline, SendTrip
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.control_messages import RedisControl
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.scripts import script
from django_throttle.stores.redis.transport import BATCH, RedisCall

LATE_MS: Final = 60_000  # by then a command that timed out has arrived, or never will


class UncertainEvictions:
    """Evictions of which the evicted may not have been told: the agent asks Redis who lost a slot, and tells them.

    Safe to use from any thread.
    """

    def __init__(self, context: RedisContext, control: RedisControl) -> None:
        self.context, self.control = context, control
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._uncertain: dict[Evict, bool] = {}  # whether the newcomer gave up

    def add(self, command: Evict, *, withdraws: bool) -> None:
        """The eviction may have been executed. ``withdraws`` when the newcomer was not told so, and gives up."""
        with self._lock:
            self._uncertain[command] = withdraws

    def discard(self, command: Evict) -> None:
        with self._lock:
            self._uncertain.pop(command, None)

    def resolve(self) -> None:
        """Ask about each one, and tell the evicted; what fails is asked again. Raises StoreError."""
        with self._lock:
            uncertain = dict(islice(self._uncertain.items(), BATCH))
        if not uncertain:
            return
        replies = self.context.pipeline(list(starmap(self._question, uncertain.items())))
        answered = {one: lost for one, lost in zip(uncertain, replies, strict=True) if type(lost) is list}
        rules = [(one.charge.rule, map(text, lost)) for one, lost in answered.items()]
        closing = dict.fromkeys(each for rule, lost in rules for each in evicted(lost, rule.name, rule.params.limit))
        settled = () if self.control.send(self.control.keep(closing)) else answered
        with self._lock:
            for one, withdraws in uncertain.items():
                if self._uncertain.get(one) is withdraws:
                    del self._uncertain[one]
                    if one not in settled:  # last, so that a node that is away delays no other
                        self._uncertain[one] = withdraws

    def _question(self, one: Evict, withdraws: bool) -> tuple[str, tuple[str], tuple[str, int]]:
        key = self.context.key(one.charge.rule.id, one.charge.ident)
        return "list_evicted", (key,), (one.lease if withdraws else "", LATE_MS)


class EvictCommand(LongCommand[bool]):
    """Takes the slot, then tells the evicted; where telling fails they are told later, and the newcomer stays."""

    __slots__ = ("command", "evicted", "evictions", "uid")

    def __init__(self, context: RedisContext, command: Evict, evictions: UncertainEvictions) -> None:
        super().__init__(context)
        self.command, self.evictions = command, evictions
        self.uid = context.leases.uid
        self.evicted: tuple[ControlMessage, ...] = ()
        rule, ident, _ = command.charge
        args = (context.now_arg(), self.uid, command.lease, context.lease_ttl_ms, rule.params.limit)
        self.calls.append(RedisCall(script("evict"), (context.key(rule.id, ident),), args, derives=True))

    async def reply(self, send: SendTrip) -> bool:
        taken = bool(self.finish(await send(Pipeline(self.calls))))
        if self.evicted:
            with suppress(Exception):
                replies = await send(Pipeline(self._tell(), self.context.transport.seconds / 2))
                if not self.evictions.control.sent(self.evicted, replies):
                    self.evictions.discard(self.command)
        return taken

    def read(self, replies: Sequence[Any]) -> bool:
        taken, *found = replies[-1]
        names = list(map(text, found))
        victims = zip(names[::2], names[1::2], strict=True)
        self.evicted = self.evictions.control.keep(closing(self.command.charge.rule, victims))
        if self.evicted:
            self.evictions.add(self.command, withdraws=False)
        if taken:
            rule, ident, _ = self.command.charge
            self.context.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(taken)

    def give_up(self) -> None:
        rule, ident, _ = self.command.charge
        self.context.leases.release_uncertain(rule.id, ident, self.command.lease, self.uid)
        self.evictions.add(self.command, withdraws=True)

    def _tell(self) -> list[RedisCall]:
        return self.evictions.control.calls(self.evicted)
