"""Frames on their way out: dropped, or kept until there is room, and the client is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from datetime import datetime
from time import monotonic
from typing import Final

from django.utils import timezone

from django_throttle.core import Decision
from django_throttle.sockets.frames import Event, Gap, Send
from django_throttle.sockets.timers import spawn

logger = logging.getLogger("django_throttle")

# Kinds of frames of which the newest is kept.
MOST_KINDS: Final = 1000
# Between two frames that tell of gaps, and before what was kept is tried again; seconds.
TELL_EVERY: Final = 1.0
TRY_AGAIN: Final = 0.01

Decide = Callable[[Event], Awaitable[Decision | None]]


class Outgoing:
    """The frames to one client that were not sent; ``lost`` have been left out since it was last told."""

    __slots__ = ("_count", "_decide", "_kept", "_send", "_since", "_tell", "_timer", "_told", "lost")

    def __init__(
        self, decide: Decide, send: Send, tell: Callable[[Gap], Awaitable[None]], count: Callable[[], None]
    ) -> None:
        self._decide, self._send, self._tell, self._count = decide, send, tell, count
        self._kept: dict[Hashable, Event] = {}
        self._since: datetime | None = None
        self._told = -TELL_EVERY
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0

    def refused(self, frame: Event, kind: Hashable | None, wait: float | None) -> None:
        """A frame may not go for ``wait`` seconds, None for ever: it is kept for its kind, or lost."""
        if kind is None or wait is None:
            self._lose()
        else:
            self.overtaken(kind)
            self._kept[kind] = frame
            if len(self._kept) > MOST_KINDS:
                self.overtaken(next(iter(self._kept)))
        self._later(TELL_EVERY if wait is None else max(wait, TRY_AGAIN))

    def overtaken(self, kind: Hashable | None) -> None:
        """A newer frame of this kind is there: the one that was kept will never be sent."""
        if kind is not None and self._kept.pop(kind, None) is not None:
            self._lose()

    async def tell(self) -> None:
        """Tell the client of the gap, unless it was told of another a moment ago: then later."""
        if not self.lost or self._since is None:
            return
        wait = self._told + TELL_EVERY - monotonic()
        if wait > 0:
            self._later(wait)
            return
        gap, self.lost, self._since, self._told = Gap(self.lost, self._since), 0, None, monotonic()
        await self._tell(gap)

    def end(self) -> Gap | None:
        """The socket closes, and nothing more is sent: what its client has not been told that it has missed."""
        while self._kept:
            self.overtaken(next(iter(self._kept)))
        gap = Gap(self.lost, self._since) if self.lost and self._since is not None else None
        self.lost = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return gap

    def _lose(self) -> None:
        self.lost += 1
        self._count()
        if self._since is None:
            self._since = timezone.now()

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._again)

    def _again(self) -> None:
        self._timer = None
        spawn(self._flush())

    async def _flush(self) -> None:
        """What nobody waits for raises nothing: a client that has gone is the server's to tell the application of."""
        try:
            await self._send_kept()
        except Exception as error:  # noqa: BLE001 - each server has its own
            logger.debug("what was kept for a client was not sent: %r", error)

    async def _send_kept(self) -> None:
        """Send what was kept, as far as the pace allows by now, and tell of what was not."""
        for kind, frame in list(self._kept.items()):
            decision = await self._decide(frame)
            if self._kept.get(kind) is not frame:  # overtaken meanwhile
                continue
            if decision is not None and not decision.allowed:
                self._later(max(decision.retry_after or TELL_EVERY, TRY_AGAIN))
                break
            del self._kept[kind]
            await self.tell()
            await self._send(frame)
        await self.tell()
