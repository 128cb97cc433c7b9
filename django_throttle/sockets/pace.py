"""How often one socket may make us ask the store: ten times in any second, whatever its client does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

MOST: Final = 10
PERIOD: Final = 1.0


class Pace:
    """The times of the latest questions; seconds on the monotonic clock. Used on the event loop of its socket alone."""

    __slots__ = ("_asked", "_woken")

    def __init__(self) -> None:
        self._asked: list[float] = []
        self._woken: asyncio.Event | None = None

    def wait(self, now: float) -> float:
        """For how long the next question has to wait; 0.0 when it may go."""
        return max(0.0, self._asked[0] + PERIOD - now) if len(self._asked) >= MOST else 0.0

    def note(self, now: float) -> None:
        """A question goes out."""
        self._asked.append(now)
        del self._asked[:-MOST]

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until something has changed: whoever waited looks again."""
        self._woken = woken = self._woken or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken.wait()

    def wake(self) -> None:
        """Something has changed."""
        if self._woken is not None:
            self._woken.set()
            self._woken = None

    def clear(self) -> None:
        """Budgets are others now: what was asked before holds nobody up."""
        self._asked.clear()
        self.wake()
