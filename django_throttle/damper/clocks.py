"""What a process knows of its store's time: an offset to its own clock, as good as the quickest answer."""

from __future__ import annotations

from typing import Final

# A store whose clock has moved by more than this has been set, or is another one.
STEP_US: Final = 500_000


class StoreTime:
    """The store's time minus ours, in microseconds; None until the store has answered."""

    __slots__ = ("_doubt", "offset")

    def __init__(self) -> None:
        self.offset: int | None = None
        self._doubt = float("inf")

    def copy(self) -> StoreTime:
        """What is known so far, to be made better by itself: on a Cluster each node has a clock of its own."""
        copied = StoreTime()
        copied.offset, copied._doubt = self.offset, self._doubt
        return copied

    def learn(self, there: int, sent: float, heard: float) -> bool:
        """The store said ``there`` between two moments of our clock; True when its clock was set since.

        What fits in between stays as it is, unless this answer was quicker than those before.
        """
        least, most = there - micros(heard), there - micros(sent)
        known, doubt = self.offset, most - least
        if known is None or not least <= known <= most or doubt < self._doubt:
            self.offset, self._doubt = (least + most) // 2, doubt
        return known is not None and not least - STEP_US <= known <= most + STEP_US


def micros(seconds: float) -> int:
    """A moment or a length of time in whole microseconds."""
    return round(seconds * 1_000_000)
