"""Notices that the process is about to end, where a server ends it without what ``atexit`` has been given.

uvicorn catches SIGTERM, closes what is open, waits for it, and then lets the signal end the process after all. Its
handler is called as before; the first thing that it does is still said here.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from django_throttle.forks import in_child

SERVERS: Final = ("uvicorn",)  # packages whose handlers lead to such an end

Caught = Callable[[int, FrameType | None], Any]


class Ending:
    """Whether the process ends, and who is to hear of it; a forked child has a life of its own."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []
        self._begin()
        in_child(self, Ending._begin)

    def _begin(self) -> None:
        self.has_begun = False
        self._watches = False

    def watch(self) -> None:
        """Notice SIGTERM where one of those servers has caught it; only the main thread can see to that."""
        if self._watches or threading.current_thread() is not threading.main_thread():
            return
        former = signal.getsignal(signal.SIGTERM)
        if callable(former) and str(getattr(former, "__module__", "")).partition(".")[0] in SERVERS:
            signal.signal(signal.SIGTERM, self._noticing(former))
            self._watches = True

    def tell(self, listener: Callable[[], object]) -> None:
        """Call it from the signal handler: it must not wait, nor take a lock."""
        self._listeners.append(listener)

    def _noticing(self, former: Caught) -> Caught:
        def handle(number: int, frame: FrameType | None) -> Any:
            self.has_begun = True
            for listener in tuple(self._listeners):
                listener()
            return former(number, frame)

        return handle


ending = Ending()
