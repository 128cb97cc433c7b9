"""The local limiter: one process alone is held to the whole limit at once, without waiting for the loop."""

from __future__ import annotations

from typing import Final

from django_throttle.damper.estimators import SUB, Allowance

# Of the limit, at once: so nobody is above 1.5 times the limit over two seconds, the luck of the draw included.
BURST_SECONDS: Final = 0.9
LEAST_BURST: Final = 10.0  # a page's few calls at once, under small limits


class Bucket:
    """What one process lets through and the limit has not drained yet; whoever finds it full is refused.

    A costly call is let through like a cheap one, and paid off afterwards, in a sub-interval's time at most.
    """

    __slots__ = ("_at", "_burst", "_level", "_most", "_per_second")

    def __init__(self, allowance: Allowance) -> None:
        self._level = self._at = 0.0
        self.adopt(allowance)

    def adopt(self, allowance: Allowance) -> None:
        """Go by another limit from now on."""
        self._per_second = allowance.per_second
        least = min(LEAST_BURST, allowance.per_sub)
        self._burst = max(BURST_SECONDS * self._per_second, least)
        self._most = self._burst + SUB * self._per_second

    def wait(self, now: float) -> float:
        """Seconds until it has room; 0.0 when it has."""
        level = self._level - (now - self._at) * self._per_second
        self._at = now
        self._level = level = level if level > 0.0 else 0.0  # noqa: FURB136 - a call costs more than all of this
        if level < self._burst:
            return 0.0
        self._level = level = min(level, self._most)  # more only after a step back of the clock
        return (level - self._burst) / self._per_second + 0.000_001

    def charge(self, cost: float) -> None:
        """Let through; ``wait`` was asked in the same moment."""
        level = self._level + cost
        self._level = level if level < self._most else self._most  # noqa: FURB136
