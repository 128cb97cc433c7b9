"""The life of a process: what a forked child renews, and what is called at its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
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
