"""How long a socket may wait to be accepted, be silent, be open: one timer for each, set again only when it rings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from django_throttle.conf import conf

# While an application is busy its client's silence does not grow; how often that is looked at, in seconds.
LOOK_AGAIN: Final = 0.05


class Deadlines:
    """Calls ``ring`` with the word of the first deadline that has passed: not_accepted, idle or too_old.

    ``silence`` says for how long the application has listened and heard nothing, in seconds.
    """

    __slots__ = ("_idle", "_oldest", "_opened", "_ring", "_silence", "_timer", "accepted")

    def __init__(self, ring: Callable[[str], None], silence: Callable[[], float]) -> None:
        self._ring, self._silence = ring, silence
        self._opened = monotonic()
        self._idle = self._oldest = 0.0
        self.accepted = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, idle: float, oldest: float) -> None:
        """Watch from now on; both in seconds, 0 for never. Called again, other ones hold."""
        self._idle, self._oldest = idle, oldest
        self.end()
        self._set()

    def accept(self) -> None:
        """The handshake is over."""
        self.accepted = True
        self.start(self._idle, self._oldest)

    def end(self) -> None:
        """No deadline matters any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, str] | None:
        """When the next one passes, on the monotonic clock, and its word."""
        if not self.accepted:
            wait = conf().SOCKET_ACCEPT_TIMEOUT
            return (self._opened + wait, "not_accepted") if wait else None
        found = []
        if self._idle:
            found.append((monotonic() + self._idle - self._silence(), "idle"))
        if self._oldest:
            found.append((self._opened + self._oldest, "too_old"))
        return min(found, default=None)

    def _set(self) -> None:
        due = self._next()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(LOOK_AGAIN, due[0] - monotonic()), self._look)

    def _look(self) -> None:
        self._timer = None
        due = self._next()
        if due is not None and due[0] <= monotonic():
            self._ring(due[1])
        else:
            self._set()
