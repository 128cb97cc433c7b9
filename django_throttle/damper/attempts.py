"""What one process attempts under one rule and ident, by the sub-interval of the store in which it happens."""

from __future__ import annotations

from collections import deque
from typing import Final

from django_throttle.damper.aggregate import Own
from django_throttle.damper.clocks import StoreTime, micros
from django_throttle.damper.estimators import KEPT, SUB_US

FINE: Final = 0.1  # seconds; while the store's time is unknown, attempts are kept apart by so much
RECENT: Final = 1.5  # seconds at least that say how a sub-interval goes on
LEAST: Final = 1.0  # and where there have not been so many


class Attempts:
    """Counts what is attempted; ``current`` is that of the sub-interval in progress. Times are seconds on our clock.

    What it tells are totals of sub-intervals, so nothing is lost or counted twice when a report is.
    """

    __slots__ = ("_before", "_early", "_index", "_last", "_marks", "_opened", "_told", "_unsent", "current", "time")

    def __init__(self, time: StoreTime, now: float) -> None:
        self.time = time
        self.restart(now)

    def restart(self, now: float) -> None:
        """Forget everything: what is counted from now on has nothing before it."""
        self.current = 0
        self._index: int | None = None  # of the sub-interval in progress
        self._before = 0  # attempted until it began
        self._last = (0, 0)  # the index and number of one before it
        self._unsent: dict[int, Own] = {}
        self._told: Own | None = None  # confirmed of the one in progress
        self._opened = now
        self._early: deque[tuple[float, int]] = deque(maxlen=round(KEPT * SUB_US / 1_000_000 / FINE))
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])  # when, attempted until then

    def roll(self, now: float) -> float:
        """Put what was counted where it belongs; returns the moment from which on to do so again."""
        offset = self.time.offset
        if offset is None:
            self._set_apart()
            self._before, self.current, self._opened = self._before + self.current, 0, now
            return now + FINE
        index = (micros(now) + offset) // SUB_US
        if self._index is None:
            self._align(index, offset)
        if index != self._index:
            self._open(index)
        return ((index + 1) * SUB_US - offset) / 1_000_000

    def untold(self, now: float) -> tuple[Own, ...]:
        """What the aggregator does not know yet, once the store's time is known."""
        whole = tuple(self._unsent.values())
        if self._index is None or self.time.offset is None or not (self.current or self._told):
            return whole
        left = (self._index + 1) * SUB_US - micros(now) - self.time.offset
        recent = self._recent(now)  # a microsecond
        known = self._told or Own(self._index, 0, 0, 0)
        projected, pace = self.current + round(recent * max(0, left)), round(recent * SUB_US)
        current = Own(self._index, self.current, projected, pace)
        return (*whole, current) if current != known else whole

    @property
    def is_told(self) -> bool:
        """True when nothing was attempted that the aggregator does not know: no need to look any closer."""
        return not self.current and not self._unsent and not self._early and self._told is None

    def mark(self, now: float) -> None:
        """Note how much there is now, from which the recent rate is read later on."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT:
            self._marks.popleft()
        self._marks.append((now, self._before + self.current))

    def confirm(self, told: tuple[Own, ...]) -> None:
        """The aggregator has counted this."""
        for own in told:
            if own.sub == self._index:
                self._told = own
            elif self._unsent.get(own.sub) == own:
                del self._unsent[own.sub]

    def in_sub(self, now: float) -> int:
        """The most that this process has attempted of late in a sub-interval."""
        index, number = self._last
        if self._index is None:
            return self.current + sum(count for at, count in self._early if at > now - SUB_US / 1_000_000)
        return max(self.current, number if index == self._index - 1 else 0)

    def _recent(self, now: float) -> float:
        """Attempts in a microsecond, of late."""
        at, number = self._marks[0]
        for mark in self._marks:
            if mark[0] <= now - RECENT:
                at, number = mark
        return (self._before + self.current - number) / max(now - at, LEAST) / 1_000_000

    def _align(self, index: int, offset: int) -> None:
        """The store's time is known at last: what was kept apart goes where it belongs."""
        self._set_apart()
        found: dict[int, int] = {}
        for at, number in self._early:
            belongs = (micros(at + FINE / 2) + offset) // SUB_US
            found[min(belongs, index)] = found.get(min(belongs, index), 0) + number
        self._early.clear()
        self._before += self.current
        self.current = found.pop(index, 0)
        self._before -= self.current
        whole = {past: Own(past, number, number, 0) for past, number in found.items() if number}
        self._unsent = {past: own for past, own in whole.items() if past > index - KEPT}
        self._index = index

    def _set_apart(self) -> None:
        if self.current:
            self._early.append((self._opened, self.current))

    def _open(self, index: int) -> None:
        assert self._index is not None
        known = self._told or Own(self._index, 0, 0, 0)
        whole = Own(self._index, self.current, self.current, known.pace)
        if whole != known:
            self._unsent[self._index] = whole
        self._last, self._told = whole[:2], None
        self._before += self.current
        again = self._unsent.pop(index, None)  # our clock was set right, and that one goes on
        self.current = again.attempted if again else 0
        self._before -= self.current
        self._unsent = {past: own for past, own in self._unsent.items() if -KEPT < past - index <= 1}
        self._index = index
