"""Slots that were given back while a run of a task waits for one of the same rule and ident."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from django.db import close_old_connections

from django_throttle.local.leases import LeaseKey
from django_throttle.runtime import in_child


class FreedSlots:
    """Slots of this process for which the next run has to be called; ``call_next`` calls it."""

    def __init__(self) -> None:
        self.call_next: Callable[[LeaseKey], object] = len
        self._renew()
        in_child(self, FreedSlots._renew)

    def _renew(self) -> None:
        self._freed: deque[LeaseKey] = deque()
        self._lock = threading.Lock()

    def add(self, hold: LeaseKey) -> None:
        """Have a thread call the next. Does not wait, as it may be called on an event loop."""
        self._freed.append(hold)
        threading.Thread(target=self._in_thread, name="django_throttle.freed_slots", daemon=True).start()

    def drain(self) -> None:
        """Call the next for each, or wait for the thread that does: a worker may end its process after a run."""
        with self._lock:
            while self._freed:
                self.call_next(self._freed.popleft())

    def _in_thread(self) -> None:
        close_old_connections()
        try:
            self.drain()
        finally:
            close_old_connections()


freed_slots: Final = FreedSlots()
