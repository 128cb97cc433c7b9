"""From the handshake to the last event: what ends a socket, and that its leases go back in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain
from time import monotonic
from typing import Any, Final

from django_throttle.conf import conf
from django_throttle.identity import ScopeWho
from django_throttle.sockets.asgi import Event, Send
from django_throttle.sockets.background import spawn
from django_throttle.sockets.deadlines import Deadlines
from django_throttle.sockets.frames import notice
from django_throttle.sockets.live import Farewell, Socket, live
from django_throttle.sockets.slots import give_back, returned
from django_throttle.sockets.telling import parting, turning_away
from django_throttle.sockets.terms import Terms
from django_throttle.sockets.waiting import Waiting

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
