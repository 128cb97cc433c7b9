"""Utilities of the process: forks, shutdown, event loops, and throttling of log lines."""

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
    """Call ``renew(owner)`` at the start of each forked child, as long as the owner lives."""
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew_all)


SERVERS: Final = ("uvicorn",)  # packages whose handlers of SIGTERM end the process without atexit
_SERVER_MODULES: Final = tuple(f"{name}.server" for name in SERVERS)
MAX_EXIT_SECONDS: Final = 2.0

OnSignal = Callable[[int, FrameType | None], object]


class Shutdown:
    """The shutdown of the process. ``has_begun`` is True after SIGTERM; it is False in a forked child."""

    def __init__(self) -> None:
        self._on_begin: Callable[[], object] = int
        self._before_exit: Callable[[], object] = int
        self._renew()
        in_child(self, Shutdown._renew)

    def _renew(self) -> None:
        self.has_begun = self._is_watching = False

    def watch(self) -> None:
        """Watch for SIGTERM if one of SERVERS handles it. Do nothing outside of the main thread."""
        if self._is_watching or not any(map(sys.modules.__contains__, _SERVER_MODULES)):  # hot path: for each socket
            return
        if threading.current_thread() is not threading.main_thread():
            return
        former = signal.getsignal(signal.SIGTERM)
        if callable(former) and str(getattr(former, "__module__", "")).partition(".")[0] in SERVERS:
            signal.signal(signal.SIGTERM, self._wrapped(former))
            self._is_watching = True
        elif former is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._finish)

    def register(self, on_begin: Callable[[], object], before_exit: Callable[[], object]) -> None:
        """Set the functions that are called on SIGTERM.

        ``on_begin`` is called in a signal handler before that of the server, so it must not wait or take a lock.
        ``before_exit`` is called in a thread if no server handles the signal.
        """
        self._on_begin, self._before_exit = on_begin, before_exit

    def _wrapped(self, former: OnSignal) -> OnSignal:
        def handle(number: int, frame: FrameType | None) -> object:
            self.has_begun = True
            self._on_begin()
            return former(number, frame)

        return handle

    def _finish(self, number: int, frame: FrameType | None) -> None:
        """Call ``before_exit`` in a thread, as the interrupted code may hold a lock, then end the process."""
        self.has_begun = True
        thread = threading.Thread(target=self._before_exit, daemon=True)
        thread.start()
        thread.join(MAX_EXIT_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


shutdown = Shutdown()


# Event loops


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` in a thread of the pool, not in the thread that all synchronous consumers share.

    No request ends in that thread, so its old database connections are closed here.
    """

    def with_closed_connections() -> T:
        close_old_connections()
        try:
            return work(*args, **kwargs)
        finally:
            close_old_connections()

    return await sync_to_async(with_closed_connections, thread_sensitive=False)()


async def at_once_or_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` here. If it needs a database or session, call it again in a thread."""
    try:
        return work(*args, **kwargs)
    except SynchronousOnlyOperation:
        return await in_thread(work, *args, **kwargs)


def is_on_event_loop() -> bool:
    """Return True if this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


background_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a task on the running loop. asyncio logs its error if the task is not awaited."""
    task = asyncio.ensure_future(work)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task


# Log lines

MAX_SUBJECTS: Final = 10_000


@dataclass(slots=True)
class _LogLine:
    written: float  # on the throttle's clock
    left_out: int = 0


class LogThrottle:
    """Allows one log line in ``seconds`` for each subject, a tuple of texts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, seconds: float = 60.0) -> None:
        self._clock, self._seconds = clock, seconds
        self._lines: dict[tuple[str, ...], _LogLine] = {}
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()

    def try_acquire(self, *subject: str) -> bool:
        """Count a line and return True if it may be written."""
        return self.left_out(*subject) is not None

    def left_out(self, *subject: str) -> int | None:
        """Return the number of lines left out since the last line, or None if this line is left out too."""
        now = self._clock()
        with self._lock:
            line = self._lines.get(subject)
            if line is not None and now - line.written < self._seconds:
                line.left_out += 1
                return None
            if len(self._lines) >= MAX_SUBJECTS:
                self._lines.clear()
            self._lines[subject] = _LogLine(now)
            return 0 if line is None else line.left_out

    def overdue(self) -> list[tuple[tuple[str, ...], int]]:
        """Return the subjects whose last lines were left out, with their numbers, and count from 0 again."""
        now = self._clock()
        series = []
        with self._lock:
            for subject, line in self._lines.items():
                if line.left_out and now - line.written >= self._seconds:
                    series.append((subject, line.left_out))
                    line.written, line.left_out = now, 0
        return series
