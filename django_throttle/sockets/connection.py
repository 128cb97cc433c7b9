"""One open socket: what comes in, what goes out, how it ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator
from itertools import chain
from time import monotonic
from typing import Any, Final

from django_throttle import limiter
from django_throttle.conf import conf
from django_throttle.core import Decision, Lease
from django_throttle.core.problem import error_code
from django_throttle.costs import cost_of
from django_throttle.identity import ScopeWho
from django_throttle.sockets.counters import MAX_DELAY, Counters
from django_throttle.sockets.frames import (
    Event,
    Gap,
    Receive,
    Scope,
    Send,
    close_reason,
    frame,
    notice,
    parting,
    past,
    to_whoever_is_there,
    turning_away,
)
from django_throttle.sockets.limits import Gate
from django_throttle.sockets.open_sockets import Farewell, Socket, live
from django_throttle.sockets.outbound import Outgoing
from django_throttle.sockets.prepaid import Pace
from django_throttle.sockets.settings import Ladder, Terms
from django_throttle.sockets.timers import CUT, Deadlines, Waiting, spawn

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT: Final = 1.0


def give_back(leases: Iterable[Lease]) -> asyncio.Task[None]:
    """Release them in a task of its own, which no cancellation of the present one reaches."""
    return spawn(_release(tuple(leases)))


async def returned(release: asyncio.Task[None] | None) -> None:
    """Wait for that, for at most a second; then it finishes alone."""
    if release is not None and not release.done():
        await asyncio.wait({release}, timeout=RELEASE_TIMEOUT)


async def _release(leases: tuple[Lease, ...]) -> None:
    for lease in leases:
        try:
            await limiter.arelease(lease)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lease runs out by itself
            logger.warning("a connection's lease was not released and runs out by itself: %s", error)


# How long an application may go on sending to a client that we have closed, before it gets an error for it, and how
# long its own close may take; seconds.
MOMENT: Final = 10.0

_WHY: Final = {
    "idle": "Nothing has come from you for too long.",
    "too_old": "This connection has been open for as long as one may be.",
    "not_accepted": "The server took too long to accept this connection.",
}


class Life(Socket):
    """A socket from its handshake to its end. ``terms`` are what its door says of it; ``tell`` sends our own frames."""

    __slots__ = (
        "_deadlines", "_left", "_listens", "_open", "_outer", "_over", "_releasing", "_silent", "_stuck", "_waiting",
        "farewell", "tell", "terms", "within",
    )  # fmt: skip

    def __init__(self, id: str, who: ScopeWho, terms: Terms, tell: Send, outer: Life | None) -> None:  # noqa: A002
        super().__init__(id, terms.scope, who.subject.get("path", ""), who)
        self.terms, self.tell, self._outer = terms, tell, outer
        self.within: tuple[Life, ...] = ()  # guards of other scopes, nearer to the application
        self._waiting = Waiting()
        self._deadlines: Deadlines | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._silent = 0.0  # what has been listened in vain, up to the last wait
        self._listens: float | None = None  # since when the application waits for its client
        self._stuck: float | None = None  # since when it is sending a frame
        self._open = False  # between accept and close: frames can be sent
        self._over = False  # closed by the application or by the client
        self.farewell: Farewell | None = None  # closed by us
        self._left = 0.0  # when that was

    def start(self) -> None:
        """It has been let in, to the application."""
        if self._outer is None:
            live.add(self)
        else:
            self._outer.leases += self.leases
            self._outer.within += (self,)
        self._deadlines = Deadlines(self._ring, self.silence)
        self._deadlines.start(*self.terms.lifetimes())
        if self._outer is not None and self._outer.is_over:  # which was while this one was decided
            self.over()

    def nest(self) -> Iterator[Any]:
        """This one, and those within."""
        yield self
        for one in self.within:
            yield from one.nest()

    def adopt(self, terms: Terms) -> None:
        """A guard inside, of the same scope, leaves its part to this one, which goes by its terms from now on."""
        self.terms = terms
        if self._deadlines is not None:
            self._deadlines.start(*terms.lifetimes())

    def close_code(self, word: str) -> int:
        return self.terms.close_code(word)

    def silence(self) -> float:
        """For how long the application has listened since its client was last heard, or accepted; in seconds.

        What a client sends to an application that is busy stays unread, and is not held to be silence. But one that
        does not take a frame for so long has gone, or might as well have.
        """
        return max(self.listened(), monotonic() - self._stuck if self._stuck is not None else 0.0)

    def hear(self) -> None:
        """Its client has said something, which guards within may never see."""
        self.heard, self._silent = monotonic(), 0.0
        if self._listens is not None:
            self._listens = self.heard
        for one in self.within:
            one.hear()

    @property
    def is_over(self) -> bool:
        """Closed, by whomever."""
        return self._over

    @property
    def is_open(self) -> bool:
        """Between accept and close."""
        return self._open

    def listened(self) -> float:
        """As above, in vain, whatever is being sent."""
        return self._silent if self._listens is None else self._silent + monotonic() - self._listens

    def accepted(self) -> None:
        """The application has accepted it."""
        self._open = not self._over
        self._silent = 0.0
        if self._listens is not None:
            self._listens = monotonic()
        if self._deadlines is not None:
            self._deadlines.accept()

    def leave(self, farewell: Farewell) -> None:
        if self.farewell is None and not self._over:
            spawn(self.depart(farewell))

    async def depart(self, farewell: Farewell) -> None:
        """Say goodbye, close, and have the application hear of it; its leases do not wait for any of that."""
        around = self._outer is not None and self._outer.farewell is not None
        if self.farewell is not None or self._over or around:
            return
        self.farewell, self._left = farewell, monotonic()
        words, was_open = self.last_words(), self._open
        self.over()
        by_frame = (self.terms.refuse or conf().REFUSE_SOCKET) == "frame"
        events = parting(farewell) if was_open else turning_away(farewell, self.who.subject, by_frame=by_frame)
        try:
            for event in chain(words, events):
                await self.tell(event)
        finally:
            self._waiting.cut()

    def last_words(self) -> tuple[Event, ...]:
        """What its client is told before it closes, whoever closes it: of the frames that it was not sent."""
        return ()

    def unheard(self) -> None:
        """The application sends although we have closed: in vain at first, so that it can end what it is doing.

        Whoever never listens would go on for ever. Raises what servers do for a closed socket (ASGI: an OSError).
        """
        if monotonic() > self._left + MOMENT:
            raise ConnectionAbortedError("this socket was closed by its limiter")

    def over(self) -> None:
        """Nothing more will come of it: it is looked after no longer, and its leases go back."""
        self._open, self._over = False, True
        live.remove(self)
        if self._deadlines is not None:
            self._deadlines.end()
            self._deadlines = None
        if self._outer is not None:
            self._outer.within = tuple([one for one in self._outer.within if one is not self])
            self._outer.leases = tuple([one for one in self._outer.leases if one not in self.leases])
        if self.leases and self._releasing is None:
            self._releasing = give_back(self.leases)

    async def gone(self) -> None:
        """The application has ended: its leases are given back, or will be."""
        self.over()
        await returned(self._releasing)

    def _ring(self, word: str) -> None:
        payload = notice(word, _WHY[word], retry_after=0)
        self.leave(Farewell(self.terms.close_code(word), word.replace("_", " "), payload))


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
