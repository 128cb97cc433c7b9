"""Inbound frames of one socket: admitted, delayed, or refused before anyone decodes them."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from django_throttle.core import Decision
from django_throttle.core.problem import error_code
from django_throttle.costs import cost_of
from django_throttle.lifecycle import spawn
from django_throttle.sockets.close import Close, close_reason
from django_throttle.sockets.connection import CUT, Connection
from django_throttle.sockets.counters import MAX_DELAY
from django_throttle.sockets.frames import Event, frame


class Inbound:
    """What the application receives from."""

    __slots__ = ("_connection", "_has_seen_close", "_kept", "_ready_at")

    def __init__(self, connection: Connection, first: Event) -> None:
        self._connection = connection
        self._kept: Event | None = first  # not passed yet: an application that stops waiting gets it next time
        self._ready_at: float | None = None  # when the kept frame, which was allowed, has its turn
        self._has_seen_close = False  # the application, ours

    async def receive(self) -> Event:
        """The next event that may pass; a refused frame is answered and dropped."""
        connection = self._connection
        while True:
            waits = connection.closed is None or self._has_seen_close
            event: Any = self._kept or (await connection.next_event() if waits else CUT)
            if event is not CUT and event["type"] != "websocket.receive":
                self._kept = None
                if event["type"] == "websocket.disconnect":
                    connection.end()
                return event  # type: ignore[no-any-return]
            if (close := connection.closed) is not None:  # a frame that crosses our close reaches no one
                self._kept = None
                if not self._has_seen_close:
                    self._has_seen_close = True
                    return {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
            elif event is not CUT and await self._admit(event):
                self._kept, self._ready_at = None, None
                if not connection.has_ended:
                    if (escalation := connection.escalation).violations or escalation.quiet_until:
                        escalation.reset()
                    return event  # type: ignore[no-any-return]
                await asyncio.sleep(0)  # it crosses the application's own close: nobody is charged for it any more

    async def _admit(self, event: Event) -> bool:
        """Whether a frame passes, once it has waited for its turn."""
        connection, self._kept = self._connection, event
        if self._ready_at is None:
            cost = connection.settings.cost
            decision = await connection.incoming.admit(event, 1 if cost == 1 else cost_of(cost, event))
            if decision is None:
                return True
            if not decision.allowed:
                return await self._refuse(event, decision)
            self._ready_at = monotonic() + decision.delay
        return await connection.waits.on(asyncio.sleep(self._ready_at - monotonic())) is not CUT

    async def _refuse(self, event: Event, decision: Decision) -> bool:
        """Do what is due for a refused frame; True when it passes all the same, having waited."""
        connection = self._connection
        escalation, settings = connection.escalation, connection.settings
        connection.refused += 1
        action = escalation.refused(decision, settings.action)
        if action != "drop" and connection.is_open and escalation.may_send_error(decision):
            await connection.tell(frame(settings.refusal_content(decision)))
        if action == "delay" and decision.retry_after and await self._passes_later(event, decision.retry_after):
            return True
        self._kept = None
        if action == "close" and connection.is_open:
            close = Close(settings.close_code(error_code(decision)), close_reason(decision))
            await asyncio.shield(spawn(connection.close_by(close)))  # an application that waits no longer cuts it not
        # Neither a full queue of frames nor the memory store ever waits: let other sockets have a turn.
        await asyncio.sleep(0)
        return False

    async def _passes_later(self, event: Event, seconds: float) -> bool:
        """Whether a refused frame passes after all, when it is delayed for as long as any may be."""
        connection = self._connection
        if await connection.waits.on(asyncio.sleep(min(seconds, MAX_DELAY))) is CUT:
            return False
        again = await connection.incoming.admit(event, cost_of(connection.settings.cost, event))
        return again is None or again.allowed
