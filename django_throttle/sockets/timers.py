"""Timers and waits of a socket, and small tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from django_throttle.conf import conf

logger = logging.getLogger("django_throttle")

T = TypeVar("T")

_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start it on the running loop; what it raises is logged, unless somebody waits for it after all."""
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


# What a wait comes to that was cut short.
CUT: Final[Any] = object()


class Waiting:
    """What the tasks of one application wait for: each for one thing at a time."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def on(self, work: Awaitable[Any]) -> Any:
        """Wait for this; returns CUT when ``cut`` is called meanwhile."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        self._tasks.add(task)
        try:
            return await work
        except (asyncio.CancelledError, Exception):  # a server may have an error of its own for a frame that is cut
            # As asyncio.timeout does it: a cancellation that is not ours goes on.
            if task is None or task in self._tasks or task.uncancel() > before:
                raise
            return CUT
        finally:
            self._tasks.discard(task)

    def cut(self) -> None:
        """End all that are waited for."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            if task is not None:
                task.cancel()


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
