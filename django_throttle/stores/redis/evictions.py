"""Evictions: a new socket takes the slot of another under a full rule, whose process closes that socket afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, starmap
from threading import Lock
from typing import Any, Final

from django_throttle.core.commands import Evict
from django_throttle.core.control_messages import ControlMessage, closing, evicted
from django_throttle.runtime import in_child
from django_throttle.stores.redis.commands import LongCommand, Pipeline, SendPipeline
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.control_messages import RedisControl
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.scripts import script
from django_throttle.stores.redis.transport import BATCH, RedisCall

MAX_DELAY_MS: Final = 60_000  # after which a command that timed out arrives no more


class UncertainEvictions:
    """Evictions whose sockets may not have been notified.

    The agent reads the evicted sockets from Redis and notifies them. Safe to use from any thread.
    """

    def __init__(self, context: RedisContext, control: RedisControl) -> None:
        self.context, self.control = context, control
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._uncertain: dict[Evict, bool] = {}  # True if the new socket withdraws

    def add(self, command: Evict, *, withdraws: bool) -> None:
        """Note an eviction that may have been executed.

        ``withdraws`` is True if the new socket closes, because it does not know the outcome.
        """
        with self._lock:
            self._uncertain[command] = withdraws

    def discard(self, command: Evict) -> None:
        with self._lock:
            self._uncertain.pop(command, None)

    def resolve(self) -> None:
        """Read the outcomes, and notify the evicted sockets. What fails is tried again. Raise StoreError."""
        with self._lock:
            uncertain = dict(islice(self._uncertain.items(), BATCH))
        if not uncertain:
            return
        replies = self.context.pipeline(list(starmap(self._question, uncertain.items())))
        replies_by_eviction = {
            eviction: reply for eviction, reply in zip(uncertain, replies, strict=True) if type(reply) is list
        }
        messages: dict[ControlMessage, None] = {}
        for eviction, leases in replies_by_eviction.items():
            rule = eviction.charge.rule
            messages |= dict.fromkeys(evicted(map(text, leases), rule.name, rule.params.limit))
        settled = () if self.control.send(self.control.keep(messages)) else replies_by_eviction
        with self._lock:
            for eviction, withdraws in uncertain.items():
                if self._uncertain.get(eviction) is withdraws:
                    del self._uncertain[eviction]
                    if eviction not in settled:  # at the end, so that a node that is away delays no others
                        self._uncertain[eviction] = withdraws

    def _question(self, eviction: Evict, withdraws: bool) -> tuple[str, tuple[str], tuple[str, int]]:
        key = self.context.key(eviction.charge.rule.id, eviction.charge.ident)
        return "list_evicted", (key,), (eviction.lease if withdraws else "", MAX_DELAY_MS)


class EvictCommand(LongCommand[bool]):
    """Command that takes the slot, then notifies the evicted sockets.

    If notifying fails, the agent notifies them later. The new socket keeps its slot.
    """

    __slots__ = ("command", "evicted", "evictions", "uid")

    def __init__(self, context: RedisContext, command: Evict, evictions: UncertainEvictions) -> None:
        super().__init__(context)
        self.command, self.evictions = command, evictions
        self.uid = context.leases.uid
        self.evicted: tuple[ControlMessage, ...] = ()
        rule, ident, _ = command.charge
        args = (context.now_arg(), self.uid, command.lease, context.lease_ttl_ms, rule.params.limit)
        self.calls.append(RedisCall(script("evict"), (context.key(rule.id, ident),), args, has_derived_keys=True))

    async def reply(self, send: SendPipeline) -> bool:
        has_slot = bool(self.finish(await send(Pipeline(self.calls))))
        if self.evicted:
            with suppress(Exception):
                replies = await send(Pipeline(self._message_calls(), self.context.transport.seconds / 2))
                if not self.evictions.control.sent(self.evicted, replies):
                    self.evictions.discard(self.command)
        return has_slot

    def read(self, replies: Sequence[Any]) -> bool:
        has_slot, *victim_texts = replies[-1]
        uids_and_leases = list(map(text, victim_texts))
        victims = zip(uids_and_leases[::2], uids_and_leases[1::2], strict=True)
        self.evicted = self.evictions.control.keep(closing(self.command.charge.rule, victims))
        if self.evicted:
            self.evictions.add(self.command, withdraws=False)
        if has_slot:
            rule, ident, _ = self.command.charge
            self.context.leases.hold(rule.id, ident, self.command.lease, self.uid)
        return bool(has_slot)

    def on_unknown_outcome(self) -> None:
        rule, ident, _ = self.command.charge
        self.context.leases.release_uncertain(rule.id, ident, self.command.lease, self.uid)
        self.evictions.add(self.command, withdraws=True)

    def _message_calls(self) -> list[RedisCall]:
        return self.evictions.control.calls(self.evicted)
