"""Log throttling: at most one line a minute about each subject."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

QUIET_SECONDS: Final = 60.0


class LogThrottle:
    """Whether a line about a subject is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def due(self, subject: str) -> bool:
        """True the first time, and again when a minute has passed since the last True."""
        now = self._clock()
        if now - self._last.get(subject, -QUIET_SECONDS) < QUIET_SECONDS:
            return False
        self._last[subject] = now
        return True
