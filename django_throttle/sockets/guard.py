"""The guard of one socket: it wraps what the application receives and sends, and decides which frames pass.

Everything hangs on ``receive`` and ``send`` because they are asynchronous for every kind of consumer, and
the leases on a ``finally`` because an application is not always told that its client has gone.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any

from django_throttle.core import Decision
from django_throttle.core.problem import error_code
from django_throttle.costs import cost_of
from django_throttle.identity import ScopeWho
from django_throttle.sockets.asgi import Event, Receive, Scope, Send
from django_throttle.sockets.background import spawn
from django_throttle.sockets.counters import MAX_DELAY, Counters
from django_throttle.sockets.frames import close_reason, frame
from django_throttle.sockets.gate import Gate
from django_throttle.sockets.ladder import Ladder
from django_throttle.sockets.live import Farewell
from django_throttle.sockets.outward import Outward
from django_throttle.sockets.pace import Pace
from django_throttle.sockets.telling import past, to_whoever_is_there
from django_throttle.sockets.terms import Terms
from django_throttle.sockets.waiting import CUT


class Guard(Outward):
    """Stands between a server and the application of one socket."""

    __slots__ = ("_counters", "_kept", "_ladder", "_ready", "_receive", "_told", "way_in")

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, terms: Terms, first: Event, outer: Guard | None = None
    ) -> None:
        # What a guard says of itself, no guard counts.
        tell = to_whoever_is_there(send) if outer is None else past(outer.tell, send)
        name = secrets.token_urlsafe(9) if outer is None else outer.id
        super().__init__(name, ScopeWho(scope), terms, tell, outer, send)
        self._receive = receive
        pace = Pace() if outer is None else outer.way_in.pace
        self._counters, self._ladder = Counters(), Ladder()
        around: tuple[Gate | None, Gate | None] = (None, None) if outer is None else (outer.way_in, outer.way_out)
        self.way_in: Gate = Gate(self.scope, "message", self.who, self._counters, pace, around[0])
        self.way_out: Gate = Gate(self.scope, "send", self.who, self._counters, pace, around[1])
        self._kept: Event | None = first
        self._ready: float | None = None  # when the kept frame, which was allowed, has its turn
        self._told = False  # the application, of our farewell

    async def receive(self) -> Event:
        """The next event that may pass; a refused frame is answered and dropped before anyone decodes it."""
        while True:
            event = self._kept or (await self._next() if self.farewell is None or self._told else CUT)
            if event is not CUT and event["type"] != "websocket.receive":
                self._kept = None
                if event["type"] == "websocket.disconnect":
                    self.over()
                return event
            if self.farewell is not None:  # what crosses our close reaches no one
                self._kept = None
                if not self._told:
                    self._told = True
                    return {"type": "websocket.disconnect", "code": self.farewell.code, "reason": self.farewell.reason}
            elif event is not CUT and await self._admit(event):
                self._kept, self._ready = None, None
                if not self._over:
                    self._ladder.allowed()
                    return event
                await asyncio.sleep(0)  # it crosses the application's own close: nobody is charged for it any more

    def forget(self) -> None:
        self._counters.clear()
        self._ladder.allowed()
        self.renew(charged=False)
        for one in self.within:
            one.forget()

    def renew(self, *, charged: bool = True) -> None:
        """Rules are others now: nothing that was bought or refused holds any more."""
        self._ladder.quiet_until = 0.0
        self.way_in.forget(charged=charged)
        self.way_out.forget(charged=charged)

    def over(self) -> None:
        super().over()
        self.way_in.end()

    async def _next(self) -> Any:
        self._listens = monotonic()
        try:
            event = await self._waiting.on(self._receive())
        except BaseException:  # it has stopped waiting, and may come back
            self._silent, self._listens = self.listened(), None
            raise
        self._listens = None
        if event is not CUT and event["type"] == "websocket.receive":
            self.hear()
            self.received += 1
        return event

    async def _admit(self, event: Event) -> bool:
        """Whether a frame passes, once it has waited for its turn."""
        self._kept = event  # an application that stops waiting (a timeout around receive) gets it next time
        if self._ready is None:
            decision = await self.way_in.decide(event, cost_of(self.terms.cost, event))
            if decision is None:
                return True
            if not decision.allowed:
                return await self._refuse(event, decision)
            self._ready = monotonic() + decision.delay
        return await self._waiting.on(asyncio.sleep(self._ready - monotonic())) is not CUT

    async def _refuse(self, event: Event, decision: Decision) -> bool:
        """Do about a refused frame what the ladder says; True when it passes all the same, having waited."""
        self.refused += 1
        measure = self._ladder.climb(self.terms, decision)
        if measure != "drop" and self._open and self._ladder.may_tell(decision):
            await self.tell(frame(self.terms.said(decision)))
        if measure == "delay" and decision.retry_after and await self._waited(event, decision.retry_after):
            return True
        self._kept = None
        if measure == "close" and self._open:
            farewell = Farewell(self.terms.close_code(error_code(decision)), close_reason(decision))
            await asyncio.shield(spawn(self.depart(farewell)))  # an application that waits no longer does not cut it
        # Neither a full queue of frames nor the memory store ever waits: let other sockets have a turn.
        await asyncio.sleep(0)
        return False

    async def _waited(self, event: Event, seconds: float) -> bool:
        """Whether a refused frame passes after all, when it is held up for as long as any may be."""
        if await self._waiting.on(asyncio.sleep(min(seconds, MAX_DELAY))) is CUT:
            return False
        again = await self.way_in.decide(event, cost_of(self.terms.cost, event))
        return again is None or again.allowed
