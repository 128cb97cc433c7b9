"""Concurrency: the number of leases held at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import State, StepResult
from django_throttle.core.algorithms.uncounted import Uncounted

# It is unknown when a slot will be free. Microseconds.
RETRY_AFTER_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Concurrency(Uncounted):
    """At most ``limit`` leases at once. State: number of leases, and 1 if the caller's is among them.

    The store keeps the leases. A lease that is held already is granted again.
    """

    retry_after_us: int = RETRY_AFTER_US
    name, wire_id = "concurrency", 11

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        held, has_own = state or (0, 0)
        wanted = 0 if has_own else cost
        left = max(0, self.limit - held)
        return StepResult(
            retry=0 if held + wanted <= self.limit else self.retry_after_us,
            remaining=left,
            reset=self.retry_after_us if held else 0,
            charged_remaining=max(0, left - wanted),
            charged_reset=self.retry_after_us,
            charged_state=None,
            refused_state=None,
        )


CONCURRENCY: Final = base.Algorithm(
    name="concurrency",
    label="Concurrency",
    help="open at once",
    params=lambda rule: Concurrency(rule.limit or 0),
    takes=("limit", "at_limit", "max_queue"),
    holds_slots=True,
)
