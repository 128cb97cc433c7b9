"""Notices that the process is about to end, where a server ends it without what ``atexit`` has been given.

uvicorn catches SIGTERM, closes what is open, waits for it, and then has the signal do what it did before, which is to
end the process. So a handler of ours takes the place of what was before, if we are there before uvicorn. In any case
its own handler is called through one of ours, which notices.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from django_throttle.forks import in_child

SERVERS: Final = ("uvicorn",)  # packages whose handlers lead to such an end
LAST_SECONDS: Final = 2.0  # for what is to be done in the end

Caught = Callable[[int, FrameType | None], Any]


class Ending:
    """Whether the process ends, and who is to hear of it; a forked child has a life of its own."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self._begin()
        in_child(self, Ending._begin)

    def _begin(self) -> None:
        self.has_begun = False
        self._watches = False

    def watch(self) -> None:
        """Notice SIGTERM where one of those servers catches it; only the main thread can see to that."""
        if self._watches or threading.current_thread() is not threading.main_thread():
            return
        former = signal.getsignal(signal.SIGTERM)
        if callable(former) and str(getattr(former, "__module__", "")).partition(".")[0] in SERVERS:
            signal.signal(signal.SIGTERM, self._noticing(former))
            self._watches = True
        elif former is signal.SIG_DFL and any(f"{name}.server" in sys.modules for name in SERVERS):
            signal.signal(signal.SIGTERM, self._finish)

    def tell(self, begins: Callable[[], object], last: Callable[[], object]) -> None:
        """Call ``begins`` in the signal handler, where it must not wait or take a lock, and ``last`` before the end."""
        self._listeners.append((begins, last))

    def _noticing(self, former: Caught) -> Caught:
        def handle(number: int, frame: FrameType | None) -> Any:
            self.has_begun = True
            for begins, _ in tuple(self._listeners):
                begins()
            return former(number, frame)

        return handle

    def _finish(self, number: int, frame: FrameType | None) -> None:
        """In a thread, as whoever was interrupted may hold a lock."""
        self.has_begun = True
        thread = threading.Thread(target=self._do_last, daemon=True)
        thread.start()
        thread.join(LAST_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _do_last(self) -> None:
        for _, last in tuple(self._listeners):
            last()


ending = Ending()
