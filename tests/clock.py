"""The clock of the test kit, with the words of our own tests."""

from __future__ import annotations

from django_throttle import testing
from django_throttle.testing import START

__all__ = ["START", "FrozenClock"]


class FrozenClock(testing.FrozenClock):
    """Also goes to so many seconds after where it began."""

    def to(self, seconds: float) -> None:
        """Stand at this many seconds after the start, which may be earlier than now."""
        self.now_us = self.start_us + round(seconds * 1_000_000)

    step = testing.FrozenClock.tick
