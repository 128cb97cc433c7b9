"""Log throttling: of lines about the same subject one is written, then none for a while; the others are counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from django_throttle.lifecycle import in_child

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
