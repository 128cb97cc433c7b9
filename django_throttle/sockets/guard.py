"""The guard of one socket: it wraps what the application receives and sends, and keeps the connection's lease.

Everything hangs on ``receive`` and ``send`` because they are asynchronous for every kind of consumer, and
the lease on a ``finally`` because an application is not always told that its client has gone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from django_throttle import limiter
from django_throttle.conf import conf
from django_throttle.core import Decision, Lease
from django_throttle.facts import Facts
from django_throttle.identity import ScopeWho
from django_throttle.sockets.asgi import Application, Event, Receive, Scope, Send
from django_throttle.sockets.frames import close_reason, frame
from django_throttle.sockets.refusal import RATE_LIMITED, close_event
from django_throttle.sockets.terms import Terms

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT: Final = 1.0
_ENDING: Final = ("websocket.close", "websocket.http.response.start")


async def guarded(app: Application, scope: Scope, receive: Receive, send: Send, terms: Terms) -> None:
    """Run the application under the rules of its scope; anything but a socket's handshake passes untouched."""
    if scope["type"] != "websocket":
        await app(scope, receive, send)
        return
    refuse = terms.refusal()
    guard = Guard(scope, receive, send, terms, await receive())
    decision = await guard.decide_handshake()
    try:
        if decision.allowed:
            await app(scope, guard.receive, guard.send)
        else:
            await refuse(scope, _to_whoever_is_there(send), decision, terms.payload(decision))
    finally:
        await give_back(decision.lease)


class Guard:
    """Stands between a server and the application of one socket, and decides which frames pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, terms: Terms, first: Event) -> None:
        self._receive, self._send, self._terms = receive, send, terms
        self._tell = _to_whoever_is_there(send)
        self._who = ScopeWho(scope)
        self._kept: Event | None = first
        self._open = False  # between accept and close: frames can be sent
        self._ended = False  # closed here, without the application's doing
        self._violations = 0
        self._quiet_until = 0.0

    async def decide_handshake(self) -> Decision:
        """One decision on the rate of handshakes and on the connections held open."""
        return await limiter.adecide(Facts(self._terms.scope, ("connect", "connection"), self._who))

    async def receive(self) -> Event:
        """The next event that may pass; a refused frame is answered and dropped before anyone decodes it."""
        while True:
            event = self._kept or await self._receive()
            if event["type"] != "websocket.receive":
                self._kept = None
                return event
            if self._ended:  # it crossed our close
                continue
            decision = await self._decide(event)
            if decision.allowed:
                self._violations, self._quiet_until = 0, 0.0
                return event
            await self._refuse(decision)
            if self._ended:
                return {"type": "websocket.disconnect", "code": RATE_LIMITED, "reason": close_reason(decision)}

    async def send(self, event: Event) -> None:
        """Pass the application's event on, unless the socket was closed here: then nothing more may follow."""
        if self._ended:
            return
        if event["type"] in _ENDING:
            self._open = False
        await self._send(event)
        if event["type"] == "websocket.accept":
            self._open = True

    async def _decide(self, event: Event) -> Decision:
        # Kept meanwhile: an application that stops waiting (a timeout around receive) gets it next time.
        self._kept = event
        facts = Facts(self._terms.scope, ("message",), self._who, self._terms.cost(event))
        decision = await limiter.adecide(facts)
        self._kept = None
        return decision

    async def _refuse(self, decision: Decision) -> None:
        """One error frame until the next frame can pass; a close after too many refusals in a row."""
        if not decision.unavailable:  # our failure is not the client's violation
            self._violations += 1
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + (decision.retry_after or 1.0)
            if self._open:
                await self._tell(frame(self._terms.payload(decision)))
        if self._open and 0 < conf().MAX_VIOLATIONS <= self._violations:
            self._open, self._ended = False, True
            await self._tell(close_event(RATE_LIMITED, decision))
        # Neither a full queue of frames nor the memory store ever waits: let other sockets have a turn.
        await asyncio.sleep(0)


def _to_whoever_is_there(send: Send) -> Send:
    """``send``, to a client that may have gone meanwhile: each server says so by an exception of its own."""

    async def tell(event: Event) -> None:
        with suppress(Exception):
            await send(event)

    return tell


_releases: set[asyncio.Task[None]] = set()


async def give_back(lease: Lease | None) -> None:
    """Release the lease, whatever happens to this task; waits for at most a second, then lets it finish alone."""
    if lease is None:
        return
    release = asyncio.ensure_future(limiter.arelease(lease))
    _releases.add(release)  # the loop itself holds tasks only weakly
    release.add_done_callback(_released)
    await asyncio.wait({release}, timeout=RELEASE_TIMEOUT)


def _released(release: asyncio.Task[None]) -> None:
    _releases.discard(release)
    if not release.cancelled() and (error := release.exception()):
        logger.warning("a connection's lease was not released and runs out by itself: %s", error)
