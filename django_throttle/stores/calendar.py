"""What a store knows of the calendar: the bounds of the periods that its clock is in."""

from __future__ import annotations

from django_throttle.core.periods import Bounds, bounds, period_of
from django_throttle.core.plan import Plan
from django_throttle.core.rule import Rule

UNKNOWN: Bounds = (0, 0, 0)


class Calendar:
    """Bounds by (period, time zone), found for the last time that the store's clock told.

    The clock is the store's, so a script that gets bounds which do not hold its time says what time it
    is; ``learn`` notes it. That costs one more round trip every other period, and at the first use.
    """

    def __init__(self) -> None:
        self._now = 0
        self._bounds: dict[tuple[str, str], Bounds] = {}

    def learn(self, now: int) -> None:
        """The store's clock says ``now``, in microseconds, and some bounds do not hold it."""
        self._now = now
        self._bounds = {name: known for name, known in self._bounds.items() if known[0] <= now < known[2]}

    def plan(self, rule: Rule) -> Plan:
        """The plan of a calendar_window rule with its bounds; unknown ones until the time is known."""
        period = period_of(rule.rate) if rule.rate else None
        if period is None or not self._now:
            return rule.plan._replace(a=0, b=0, c=0)
        name = period, rule.timezone or "UTC"
        if name not in self._bounds:
            self._bounds[name] = bounds(*name, self._now)
        start, middle, finish = self._bounds[name]
        return rule.plan._replace(a=start, b=middle, c=finish)

    def plan_at(self, rule: Rule, now: int) -> Plan:
        """The same for a store that knows its time beforehand."""
        plan = self.plan(rule)
        if not plan.a <= now < plan.c:
            self.learn(now)
            plan = self.plan(rule)
        return plan
