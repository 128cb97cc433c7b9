"""The share of its attempts that a process refuses: by the last reply, and by itself while none comes."""

from __future__ import annotations

from math import exp
from typing import Final

from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import Reply
from django_throttle.damper.estimators import ESTIMATORS, SUB_US, Allowance, attempted, factor, shifted

DECAY: Final = 3.0  # seconds in which the last factor loses two thirds of its say


class Suppression:
    """The factor in force; times are seconds on our clock."""

    __slots__ = ("_allowance", "_failing_from", "_held", "_reply", "_rule", "factor")

    def __init__(self, rule: Rule) -> None:
        self._reply: Reply | None = None
        self._failing_from = float("inf")
        self.factor = 0.0
        self.adopt(rule)

    def adopt(self, rule: Rule) -> None:
        """Go by this edition of the rule: another limit is in force at once."""
        self._rule = rule
        self._allowance = Allowance(rule.plan.limit, rule.plan.a)
        self._held = self._figure(0)

    def take(self, reply: Reply) -> None:
        """Go by what the aggregator has said."""
        self._reply, self._failing_from = reply, float("inf")
        self._held = self._figure(0)

    def fail(self, now: float, grace: float) -> None:
        """The aggregator cannot be reached; after ``grace`` seconds of that a process goes by itself."""
        self._failing_from = min(self._failing_from, now + grace)

    @property
    def is_failing(self) -> bool:
        return self._failing_from < float("inf")

    def refigure(self, now: float, now_us: int | None, own: int, processes: int) -> None:
        """The factor as it is now: never higher than the last reply's while the store answers.

        ``now_us`` is the store's time, ``own`` what this process attempts in a sub-interval.
        """
        if self.is_failing:
            weight = exp(-max(0.0, now - self._failing_from) / DECAY)
            self.factor = weight * self._held + (1 - weight) * self._alone(own, processes)
            return
        if self._reply is not None and now_us is not None:
            self._held = min(self._held, self._figure(now_us // SUB_US - self._reply.now // SUB_US))
        self.factor = self._held

    @property
    def left(self) -> int:
        """How much of the limit nobody had attempted, by the last reply."""
        if self._reply is None:
            return self._allowance.limit
        attempted = max(count.attempted for count in self._reply.counts[:2])
        return 0 if self.factor else max(0, int(self._allowance.limit * (1 - attempted / self._allowance.per_sub)))

    def rest(self, now_us: int | None) -> float:
        """Seconds until nothing counts any more of what the last reply has told, if nothing else happens."""
        if self._reply is None or now_us is None or not any(count.attempted for count in self._reply.counts):
            return 0.0
        _, looks_at = ESTIMATORS[self._rule.estimator]
        return max(0, (self._reply.now // SUB_US + looks_at) * SUB_US - now_us) / 1_000_000

    def _figure(self, later: int) -> float:
        """The factor by the last reply, so many sub-intervals later."""
        if self._reply is None:
            return 0.0
        found = attempted(self._rule.estimator, shifted(self._reply.counts, later), self._allowance)
        return factor(found, self._allowance.per_sub)

    def _alone(self, own: int, processes: int) -> float:
        """What keeps this process to its fair share of the limit."""
        if self._rule.on_store_failure != "local":
            return 0.0
        return factor(own, self._allowance.per_sub / max(1, processes))
