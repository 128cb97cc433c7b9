"""The half of a guard that looks at what goes out: an application's frames, and what becomes of those that may not."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from django_throttle.identity import ScopeWho
from django_throttle.sockets.asgi import Event, Send
from django_throttle.sockets.frames import Gap, frame
from django_throttle.sockets.gate import Gate
from django_throttle.sockets.life import MOMENT, Life
from django_throttle.sockets.outgoing import Outgoing
from django_throttle.sockets.terms import Terms

_ENDING: Final = ("websocket.close", "websocket.http.response.start")


class Outward(Life):
    """A socket whose application sends through it; ``way_out`` decides which frames pass."""

    __slots__ = ("_closing", "_outgoing", "_send", "way_out")

    way_out: Gate

    def __init__(self, name: str, who: ScopeWho, terms: Terms, tell: Send, outer: Life | None, send: Send) -> None:
        super().__init__(name, who, terms, tell, outer)
        self._send = send
        self._outgoing: Outgoing | None = None
        self._closing = False  # the application's close is on its way

    async def send(self, event: Event) -> None:
        """Pass the application's event on, unless the socket was closed here: then nothing more may follow."""
        if self.farewell is not None:
            self.unheard()
        elif event["type"] == "websocket.send":
            await self._let_out(event)
        elif event["type"] in _ENDING:
            await self._close(event)
        else:
            await self._let_go(event)
            if event["type"] == "websocket.accept":
                self.accepted()

    def last_words(self) -> tuple[Event, ...]:
        out, self._outgoing = self._outgoing, None
        gap = out.end() if out is not None else None
        return () if gap is None or not self._open else (frame(self.terms.gap(gap)),)

    def over(self) -> None:
        super().over()
        self.way_out.end()
        if self._outgoing is not None:
            self._outgoing.end()
            self._outgoing = None

    async def _close(self, event: Event) -> None:
        """As the application says. Raises TimeoutError, an OSError, when the client takes nothing for too long."""
        words, self._closing = self.last_words(), True
        self.over()
        try:
            for word in words:
                await self.tell(word)
            async with asyncio.timeout(MOMENT):
                await self._let_go(event)
        except TimeoutError:
            self._waiting.cut()
            raise
        finally:
            self._closing = False

    async def _let_out(self, event: Event) -> None:
        decision = await self.way_out.decide(event)
        out = self._outgoing
        if decision is not None and not decision.allowed:
            if self._over:  # nobody is there to be told, now or later
                return
            if out is None:
                out = self._outgoing = Outgoing(self.way_out.decide, self._let_go, self._tell_of, self._lose)
            out.refused(event, self.terms.kind(event), decision.retry_after)
            return
        if decision is not None:
            await self._waiting.on(asyncio.sleep(decision.delay))
        if self._closing:  # what crosses the close reaches no one, and nobody is charged for it
            return
        if out is not None and not self._over:
            out.overtaken(self.terms.kind(event))
            await out.tell()
        await self._let_go(event)

    async def _let_go(self, event: Event) -> None:
        """Until we have closed it: a client that reads nothing holds the application up no longer than that."""
        if self.farewell is not None:
            return
        if event["type"] == "websocket.send":
            self.sent += 1
        is_first = self._stuck is None
        if is_first:
            self._stuck = monotonic()
        try:
            await self._waiting.on(self._send(event))
        except Exception:  # each server has its own for what comes after a close, which is our doing
            if self.farewell is None:
                raise
        finally:
            if is_first:
                self._stuck = None

    async def _tell_of(self, gap: Gap) -> None:
        if self._open:
            await self.tell(frame(self.terms.gap(gap)))

    def _lose(self) -> None:
        self.lost += 1
