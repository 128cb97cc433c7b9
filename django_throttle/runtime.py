"""The process that Django runs in: forks, shutdown, work beside an event loop, and the throttling of log lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from threading import Lock
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")

# Forks

_renewals: WeakKeyDictionary[object, Callable[[Any], object]] = WeakKeyDictionary()


def in_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call ``renew(owner)`` first thing in each forked child, as long as the owner lives."""
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)


SERVERS: Final = ("uvicorn",)  # packages whose handlers of SIGTERM end the process without atexit
_MODULES: Final = tuple(f"{name}.server" for name in SERVERS)
LAST_SECONDS: Final = 2.0  # at most, for the work at the end

OnSignal = Callable[[int, FrameType | None], object]


class Shutdown:
    """Whether the process is ending, and what is called then; a forked child starts anew."""

    def __init__(self) -> None:
        self._on_begin: Callable[[], object] = int
        self._before_exit: Callable[[], object] = int
        self._renew()
        in_child(self, Shutdown._renew)

    def _renew(self) -> None:
        self.has_begun = self._watches = False

    def watch(self) -> None:
        """Notice SIGTERM where one of those servers handles it; only the main thread can do that."""
        if self._watches or not any(map(sys.modules.__contains__, _MODULES)):  # asked for each socket
            return
        if threading.current_thread() is not threading.main_thread():
            return
        former = signal.getsignal(signal.SIGTERM)
        if callable(former) and str(getattr(former, "__module__", "")).partition(".")[0] in SERVERS:
            signal.signal(signal.SIGTERM, self._noticing(former))
            self._watches = True
        elif former is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._finish)

    def register(self, on_begin: Callable[[], object], before_exit: Callable[[], object]) -> None:
        """Have ``on_begin`` called in the signal handler, where it must not wait or take a lock."""
        self._on_begin, self._before_exit = on_begin, before_exit

    def _noticing(self, former: OnSignal) -> OnSignal:
        def handle(number: int, frame: FrameType | None) -> object:
            self.has_begun = True
            self._on_begin()
            return former(number, frame)

        return handle

    def _finish(self, number: int, frame: FrameType | None) -> None:
        """In a thread, as the interrupted code may hold a lock."""
        self.has_begun = True
        thread = threading.Thread(target=self._before_exit, daemon=True)
        thread.start()
        thread.join(LAST_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


shutdown = Shutdown()


# Event loops


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` in a thread of the pool, not in the one that all synchronous consumers share.

    No request ends in that thread, so its database connections are closed as at the end of one.
    """

    def closing() -> T:
        close_old_connections()
        try:
            return work(*args, **kwargs)
        finally:
            close_old_connections()

    return await sync_to_async(closing, thread_sensitive=False)()


async def at_once_or_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` here, or again in a thread where it has to ask a database or session."""
    try:
        return work(*args, **kwargs)
    except SynchronousOnlyOperation:
        return await in_thread(work, *args, **kwargs)


def is_on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


background_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task on the running loop; asyncio logs what it raises, unless somebody waits for it after all."""
    task = asyncio.ensure_future(work)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task


# Log lines

MAX_SUBJECTS: Final = 10_000


@dataclass(slots=True)
class _Line:
    written: float  # on the throttle's clock
    left_out: int = 0


class LogThrottle:
    """Allows one line in so many ``seconds`` about each subject, which is one text or several."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, seconds: float = 60.0) -> None:
        self._clock, self._seconds = clock, seconds
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()

    def due(self, *subject: str) -> bool:
        return self.left_out(*subject) is not None

    def left_out(self, *subject: str) -> int | None:
        """How many lines were left out since the last one; None when this one is left out, too."""
        now = self._clock()
        with self._lock:
            line = self._lines.get(subject)
            if line is not None and now - line.written < self._seconds:
                line.left_out += 1
                return None
            if len(self._lines) >= MAX_SUBJECTS:
                self._lines.clear()
            self._lines[subject] = _Line(now)
            return 0 if line is None else line.left_out

    def overdue(self) -> list[tuple[tuple[str, ...], int]]:
        """The subjects whose lines were left out and have not recurred, with their numbers, which begin at 0 again."""
        now = self._clock()
        found = []
        with self._lock:
            for subject, line in self._lines.items():
                if line.left_out and now - line.written >= self._seconds:
                    found.append((subject, line.left_out))
                    line.written, line.left_out = now, 0
        return found
