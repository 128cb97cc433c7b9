"""Parameters of rules that no store counts by a state: leases, which it keeps one by one, and dampers."""

from __future__ import annotations

from collections.abc import Iterator

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, State, StepResult


class Uncounted(CounterParams):
    """Parameters of a rule that no store counts: nothing is charged, and every cost fits."""

    __slots__ = ()

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        return StepResult(0, self.limit, 0, self.limit, 0, None, None)

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        return None

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        yield from ()

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        return None
