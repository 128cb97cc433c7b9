"""A clock that stands still until it is told."""

from __future__ import annotations

from datetime import datetime
from typing import Final

# A moment at which every window of a week or less that divides a day begins: Thursday, 2023-11-16, in UTC.
START: Final = 19_677 * 86_400


class FrozenClock:
    """Counts microseconds as a whole number, so that no step is ever rounded away; called, it says seconds.

    A moment is seconds since the epoch, or a datetime that knows its time zone.
    """

    def __init__(self, start: float | datetime = START) -> None:
        self.start_us = self.now_us = _microseconds(start)

    def __call__(self) -> float:
        return self.now_us / 1_000_000

    def tick(self, seconds: float) -> None:
        """Go on by so many seconds; back, when they are less than 0."""
        self.now_us += round(seconds * 1_000_000)

    def move_to(self, moment: float | datetime) -> None:
        """Stand at this moment, earlier or later."""
        self.now_us = _microseconds(moment)


def _microseconds(moment: float | datetime) -> int:
    if not isinstance(moment, datetime):
        return round(moment * 1_000_000)
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone, so nobody knows when that is")
    return round(moment.timestamp() * 1_000_000)
