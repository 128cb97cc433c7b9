"""Escalation: what is done about refused frames in a row, and how often a client is sent an error frame."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from django_throttle.core import Decision

# What is done about a refused frame, the mildest first.
ACTIONS: Final = ("drop", "error", "delay", "close")
# Error frames: so many at once, then one a second. Else the limiter would answer a flood with another.
ERROR_BURST: Final = 5
# Seconds until the next error frame about frames that can never pass.
NEVER_RETRY: Final = 1.0


class Escalation:
    """The refusals in a row of one socket; ``quiet_until`` is on the monotonic clock."""

    __slots__ = ("_errors_forgotten_at", "quiet_until", "violations")

    def __init__(self) -> None:
        self.violations = 0
        self.quiet_until = 0.0
        self._errors_forgotten_at = 0.0

    def reset(self) -> None:
        """A frame has passed: the next refusal is the first in a row."""
        self.violations, self.quiet_until = 0, 0.0

    def refused(self, decision: Decision, action_for: Callable[[int], str]) -> str:
        """What to do about this refusal, by the action for so many in a row; a failed store is no violation."""
        if decision.unavailable:
            return min(action_for(max(1, self.violations)), "error", key=ACTIONS.index)
        self.violations += 1
        return action_for(self.violations)

    def may_send_error(self, decision: Decision) -> bool:
        """Whether an error frame is sent for this refusal, which then counts as sent: one until a frame can pass."""
        now = monotonic()
        if now < self.quiet_until or self._errors_forgotten_at - now > ERROR_BURST - 1:
            return False
        self.quiet_until = now + (decision.retry_after or NEVER_RETRY)
        self._errors_forgotten_at = max(self._errors_forgotten_at, now) + 1.0
        return True
