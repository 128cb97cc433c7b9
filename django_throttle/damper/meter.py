"""The meter of one rule and ident in one process: it counts every attempt, and says which to refuse."""

from __future__ import annotations

from itertools import count
from math import ceil
from typing import Final

from django_throttle.core.checks import MAX_DAMPED
from django_throttle.core.decision import Decision, Outcome
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.attempts import Attempts
from django_throttle.damper.bucket import Bucket
from django_throttle.damper.clocks import StoreTime, micros
from django_throttle.damper.estimators import Allowance
from django_throttle.damper.suppression import Suppression
from django_throttle.damper.verdicts import decided, passing, suppressed

RECHECK: Final = 0.25  # seconds; how often the factor is figured anew while the store is away
NEXT: Final = float("inf")  # not before the next factor
GRACE: Final = 2.0  # flushes that may fail before it is
_numbers: Final = count(1)


class Meter:
    """Times are seconds on our clock; ``maker`` names the process, and no two meters share a name."""

    __slots__ = (
        "_maker",
        "_refused_for",
        "_refuses",
        "_rest",
        "_since",
        "attempts",
        "bucket",
        "factor",
        "ident",
        "name",
        "passed",
        "passes",
        "processes",
        "rule",
        "seen_at",
        "suppression",
        "time",
        "until",
    )

    def __init__(self, rule: Rule, ident: str, maker: str, now: float, time: StoreTime) -> None:
        self.ident, self.time, self._maker = ident, time, maker
        self.rule = rule
        self.attempts = Attempts(time, now)
        self.suppression = Suppression(rule)
        self.bucket = Bucket(Allowance(rule.plan.limit, rule.plan.a))
        self.processes = 1  # live ones
        self._refused_for = -1  # milliseconds, of the last refusal
        self.until = self.seen_at = now  # from ``until`` on, look at the time again before counting
        self._begin(now)
        self.roll(now)

    def adopt(self, rule: Rule, now: float) -> None:
        """Go by this edition of the rule: another limit is in force at once."""
        self.rule = rule
        self.suppression.adopt(rule)
        self.bucket.adopt(Allowance(rule.plan.limit, rule.plan.a))
        self._refigure(now)

    def attempt(self, now: float, cost: int, chance: float) -> float:
        """Count it, whatever comes of it; returns 0.0 when it passes, else the seconds until there is room, or NEXT.

        The local limiter is charged with what the factor is expected to let through, so it steps in where that is
        more than the whole limit, and only there: the stricter of the two holds, and they do not compound.
        """
        factor = self.factor
        cost = min(cost, MAX_DAMPED)
        self.attempts.current += cost
        wait = self.bucket.wait(now)
        if wait:
            return wait
        self.bucket.charge(cost * (1.0 - factor))
        return NEXT if chance < factor else 0.0

    def refused(self, wait: float) -> Outcome:
        """What is said of an attempt that is refused; ``wait`` is until it may be tried again, to a millisecond."""
        return self.refuses(wait).outcomes[0]

    def refuses(self, wait: float) -> Decision:
        """The decision on a call that is under this rule alone, and refused."""
        said = ceil(wait * 1000)
        if said != self._refused_for:
            self._refused_for = said
            self._refuses = decided(suppressed(self.rule, self.ident, said / 1000, self._rest, self.factor))
        return self._refuses

    def roll(self, now: float) -> None:
        """A sub-interval has ended, or the factor is to be figured anew."""
        self.until = self.attempts.roll(now)
        if self.suppression.is_failing:
            self.until = min(self.until, now + RECHECK)
        self._refigure(now)

    def report(self, now: float) -> Report | None:
        """What to tell the aggregator; None when it knows, and there is no factor that it may have changed."""
        self.roll(now)
        told = self.attempts.untold(now)
        offset = self.time.offset
        if offset is None:
            return None if self.attempts.is_told else Report(self.rule.id, self.ident, self.name, 0, None, ())
        self.attempts.mark(now)
        if not told and not self.factor:
            return None
        if told:
            self.seen_at = now
        return Report(self.rule.id, self.ident, self.name, micros(self._since) + offset, micros(now) + offset, told)

    def take(self, report: Report, reply: Reply, sent: float, now: float) -> None:
        """The aggregator has answered a report that was sent at ``sent``."""
        was_set = self.time.learn(reply.now, sent, now)
        if reply.taken:
            self.attempts.confirm(report.counts)
        elif was_set or reply.reset_at > micros(self._since) + (self.time.offset or 0):
            self._begin(now)
        self.suppression.take(reply)
        self.roll(now)

    def fail(self, now: float, interval: float) -> None:
        """A report did not arrive, as far as anybody knows; its counts are told again."""
        self.suppression.fail(now, GRACE * interval)
        self.roll(now)

    def _begin(self, now: float) -> None:
        """Count from nothing: what was counted belongs to a time that is no more."""
        self.name = f"{self._maker}{next(_numbers):x}"
        self._since = now
        self.attempts.restart(now)

    def _refigure(self, now: float) -> None:
        offset = self.time.offset
        now_us = None if offset is None else micros(now) + offset
        self.suppression.refigure(now, now_us, self.attempts.in_sub(now), self.processes)
        self.factor = self.suppression.factor
        left = self.suppression.left
        self._rest = self.suppression.rest(now_us)
        # Made once here, and told many times.
        self.passed = passing(self.rule, self.ident, left, self._rest, self.factor)
        self.passes = decided(self.passed)
        self._refused_for = -1
