"""Timers and waits of a socket, and tasks that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from django_throttle.conf import conf

T = TypeVar("T")

_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task on the running loop; asyncio logs what it raises, unless somebody waits for it after all."""
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


# What a wait returns that was cut short.
CUT: Final[Any] = object()


class Waits:
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
        """End all waits."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            if task is not None:
                task.cancel()


# Seconds between two looks at a deadline that has passed but for the time in which an application was busy.
LOOK_AGAIN: Final = 0.05


class Deadlines:
    """Calls ``on_passed`` with the first deadline that has passed: not_accepted, idle or too_old.

    ``silence`` returns for how many seconds the application has listened and received nothing.
    """

    __slots__ = ("_accepted", "_idle", "_max_age", "_on_passed", "_opened", "_silence", "_timer")

    def __init__(self, on_passed: Callable[[str], None], silence: Callable[[], float]) -> None:
        self._on_passed, self._silence = on_passed, silence
        self._opened = monotonic()
        self._idle = self._max_age = 0.0
        self._accepted = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, idle: float, max_age: float) -> None:
        """Watch from now on; both in seconds, 0 for never. Called again, it replaces them."""
        self._idle, self._max_age = idle, max_age
        self.end()
        self._set()

    def accept(self) -> None:
        """The handshake is over."""
        self._accepted = True
        self.start(self._idle, self._max_age)

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, str] | None:
        """When the next one passes, on the monotonic clock, and which."""
        if not self._accepted:
            wait = conf().SOCKET_ACCEPT_TIMEOUT
            return (self._opened + wait, "not_accepted") if wait else None
        found = []
        if self._idle:
            found.append((monotonic() + self._idle - self._silence(), "idle"))
        if self._max_age:
            found.append((self._opened + self._max_age, "too_old"))
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
            self._on_passed(due[1])
        else:
            self._set()
