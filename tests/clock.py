"""A clock that stands still until it is told."""

from __future__ import annotations

# A moment at which every window of a week or less that divides a day begins: Thursday, 2023-11-16.
START = 19_677 * 86_400


class FrozenClock:
    """Counts microseconds as a whole number, so that no step is ever rounded away; called, it says seconds."""

    def __init__(self, start: float = START) -> None:
        self.start_us = self.now_us = round(start * 1_000_000)

    def __call__(self) -> float:
        return self.now_us / 1_000_000

    def to(self, seconds: float) -> None:
        """Stand at this many seconds after the start, which may be earlier than now."""
        self.now_us = self.start_us + round(seconds * 1_000_000)

    def step(self, seconds: float) -> None:
        """Go on, or back, by so many seconds."""
        self.now_us += round(seconds * 1_000_000)
