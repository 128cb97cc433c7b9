"""What is done about refused frames: the more in a row, the harder; and what clients are told stays little."""

from __future__ import annotations

from time import monotonic
from typing import Final

from django_throttle.core import Decision
from django_throttle.sockets.terms import Terms

# Error frames: so many at once, then one a second. Else the limiter would answer a flood with another.
AT_ONCE: Final = 5
# Until a frame that will never pass is spoken of again, in seconds.
NEVER: Final = 1.0


class Ladder:
    """The refusals in a row of one socket."""

    __slots__ = ("_due", "quiet_until", "violations")

    def __init__(self) -> None:
        self.violations = 0
        self.quiet_until = 0.0
        self._due = 0.0  # when all error frames that were sent are forgotten

    def allowed(self) -> None:
        """A frame has passed: the streak is over."""
        self.violations, self.quiet_until = 0, 0.0

    def climb(self, terms: Terms, decision: Decision) -> str:
        """What is to be done about this refusal; our own failure is no violation of the client's."""
        if decision.unavailable:
            return min(terms.measure(max(1, self.violations)), "error", key=_hardness)
        self.violations += 1
        return terms.measure(self.violations)

    def may_tell(self, decision: Decision) -> bool:
        """Whether the client is told of this refusal, which is then taken as told: once until a frame can pass."""
        now = monotonic()
        if now < self.quiet_until or self._due - now > AT_ONCE - 1:
            return False
        self.quiet_until = now + (decision.retry_after or NEVER)
        self._due = max(self._due, now) + 1.0
        return True


def _hardness(measure: str) -> int:
    return ("drop", "error", "delay", "close").index(measure)
