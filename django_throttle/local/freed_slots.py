"""Slots that were released while a run of a task waits for a slot of the same rule and ident."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from django.db import close_old_connections

from django_throttle.local.leases import LeaseKey
from django_throttle.runtime import in_child


class FreedSlots:
    """Released slots of this process, for each of which the next waiting run is to be called."""

    def __init__(self) -> None:
        self.call_next: Callable[[LeaseKey], object] = len  #: calls the next run; set by the app
        self._renew()
        in_child(self, FreedSlots._renew)

    def _renew(self) -> None:
        self._freed: deque[LeaseKey] = deque()
        self._lock = threading.Lock()

    def add(self, key: LeaseKey) -> None:
        """Call the next run in a thread. Do not wait for it, because the caller may be on an event loop."""
        self._freed.append(key)
        threading.Thread(target=self._in_thread, name="django_throttle.freed_slots", daemon=True).start()

    def drain(self) -> None:
        """Call the next run for each slot. Wait for a thread that does so, because a worker may exit after its run."""
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
