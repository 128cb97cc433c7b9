"""Moments in which the machine stood still: they count for no bound of time.

Whatever was to happen by then is late, and that is no fault of what is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep  # by their own names: a test may put something else in their place

EVERY = 0.01
STILL = 0.05  # seconds without a turn; a busy machine gives one sooner


class Watch:
    """Wakes up every 10 ms, and notes when it was much later than that."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._awake = clock()
        self._stalls: dict[float, float] = {}  # from when until when
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Keep watch from now on, in a thread that asks nothing of anybody."""
        if self._thread is None:
            self._awake = self._clock()
            self._thread = threading.Thread(target=self._run, name="watch for standstills", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """What the watch does each time it wakes up."""
        now = self._clock()
        if now - self._awake > EVERY + STILL:
            self._stalls[self._awake] = now
        self._awake = now

    def still_since(self, moment: float) -> float:
        """The seconds since then, by the monotonic clock, in which nothing ran; one that is just over included."""
        awake, now = self._awake, self._clock()
        stalls = dict(self._stalls)
        if self._thread and self._thread.is_alive() and now - awake > EVERY + STILL:
            stalls[awake] = now
        return sum(end - max(begin, moment) for begin, end in stalls.items() if end > moment)

    def _run(self) -> None:
        while True:
            sleep(EVERY)
            self.look()


watch = Watch()


def elapsed(since: float) -> float:
    """The seconds since a moment of the monotonic clock, without those in which the machine stood still."""
    return monotonic() - since - watch.still_since(since)
