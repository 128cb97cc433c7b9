"""Clocks that are handed in: the test kit's with the words of our own tests, and one for an event loop."""

from typing import Any

from django_throttle import testing
from django_throttle.testing import START

__all__ = ["START", "FrozenClock", "LoopClock"]


class FrozenClock(testing.FrozenClock):
    """Also goes to so many seconds after where it began."""

    def to(self, seconds: float) -> None:
        """Stand at this many seconds after the start, which may be earlier than now."""
        self.now_us = self.start_us + round(seconds * 1_000_000)

    step = testing.FrozenClock.tick


class LoopClock:
    """The time of an event loop where every wait is over at once: it passes while nobody has anything to do.

    It stands still while threads work for the loop, and does not wait for Redis.
    """

    def __init__(self, loop: Any, monkeypatch: Any, *clocks: str) -> None:
        self.now, self.threads = loop.time(), 0
        self._select, self._run_in_executor = loop._selector.select, loop.run_in_executor
        monkeypatch.setattr(loop, "time", self)
        monkeypatch.setattr(loop._selector, "select", self._wait)
        monkeypatch.setattr(loop, "run_in_executor", self._run)
        for clock in clocks:
            monkeypatch.setattr(clock, self)

    def __call__(self) -> float:
        return self.now

    def _run(self, *args: Any) -> Any:
        future = self._run_in_executor(*args)
        self.threads += 1
        future.add_done_callback(self._ran)
        return future

    def _ran(self, future: Any) -> None:
        self.threads -= 1

    def _wait(self, timeout: float | None) -> Any:
        if not timeout:
            return self._select(timeout)
        events = self._select(0.05 if self.threads else 0)
        if not (events or self.threads):
            self.now += timeout + 0.000_001  # no timer is early
        return events
