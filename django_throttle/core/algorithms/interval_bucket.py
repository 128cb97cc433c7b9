"""The interval bucket: a token bucket that is refilled all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import Limits, Plan, State, Step
from django_throttle.core.errors import InvalidRule

# Twice a bucket is the largest sum that a script makes, and doubles are exact up to 2^53.
LARGEST_BUCKET: Final = 2**52
TOO_LONG: Final = "a burst of {:,} at this rate takes longer than a store can count; make it smaller"


@dataclass(frozen=True, slots=True)
class IntervalBucket(Plan):
    """A bucket of ``limit`` units, to which each whole ``interval`` since its first use ``brings`` some.

    State: refilled at, units.
    """

    interval: int
    brings: int
    name, code = "interval_bucket", 5

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> Step:
        burst, interval, brings = self.limit, self.interval, self.brings
        since, units = state or (now, burst)
        refused_state = None
        if since > now:  # the clock went back: the interval begins again
            since, refused_state = now, (now, units)
        since, units = self._refilled(since, units, now)
        retry = 0
        if cost > units:
            if counts_denied:
                units = max(0, units - cost)
                refused_state = (since, units)
            retry = base.NEVER if cost > burst else since + -(-(cost - units) // brings) * interval - now
        return Step(
            retry=retry,
            remaining=units,
            reset=self._full_at(since, units) - now if units < burst else 0,
            charged_remaining=units - cost,
            charged_reset=self._full_at(since, units - cost) - now,
            charged_state=(since, units - cost) if retry == 0 else None,
            refused_state=refused_state,
        )

    def _refilled(self, since: int, units: int, now: int) -> tuple[int, int]:
        refills = (now - since) // self.interval
        units = min(self.limit, units + min(refills, -(-self.limit // self.brings)) * self.brings)
        return (now if units == self.limit else since + refills * self.interval), units

    def _full_at(self, since: int, units: int) -> int:
        return since + -(-(self.limit - units) // self.brings) * self.interval

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        """A bucket that was refilled since then may have been full. One that was full then begins its interval anew."""
        start, units = state
        if start > since or now >= start + self.interval:
            return None
        return (now if start == since else start), min(self.limit, units + cost)

    def late_charges(self, state: State, now: int) -> Iterator[base.Late]:
        since, units = state
        refilled = max(0, now - since) // self.interval * self.brings
        yield base.Late(self.limit - min(self.limit, units + refilled), now)

    def charge_late(self, state: State | None, now: int, late: base.Late) -> base.Stored | None:
        since, units = state or (now, self.limit)
        since, units = self._refilled(min(since, now), units, now)
        units = max(0, units - late.cost)
        return base.Stored((since, units), self._full_at(since, units) - now)

    def quota_seconds(self, limit: int, window: float) -> float:
        return -(-limit // self.brings) * self.interval / 1_000_000

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        return (reset - 1) % self.interval + 1

    def window_left(self, reset: int) -> int | None:
        return (reset - 1) % self.interval + 1  # until the next refill


def interval_bucket(rule: Limits) -> Plan:
    """The plan of a token bucket that is refilled all at once."""
    rate = base.rate_of(rule)
    plan = IntervalBucket(base.times(rule.burst or rate.limit, rule.enforce_at), rate.window_us, rate.limit)
    if -(-plan.limit // rate.limit) * rate.window_us >= LARGEST_BUCKET:
        raise InvalidRule(TOO_LONG.format(plan.limit), "burst")
    return plan
