"""How often one socket may make us ask the store: ten times in any second, whatever its client does."""

from __future__ import annotations

from typing import Final

MOST: Final = 10
PERIOD: Final = 1.0


class Pace:
    """The times of the latest questions; seconds on the monotonic clock."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: list[float] = []

    def wait(self, now: float) -> float:
        """For how long the next question has to wait; 0.0 when it may go."""
        return max(0.0, self._asked[0] + PERIOD - now) if len(self._asked) >= MOST else 0.0

    def note(self, now: float) -> None:
        """A question goes out."""
        self._asked.append(now)
        del self._asked[:-MOST]
