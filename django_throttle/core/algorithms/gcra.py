"""GCRA: a bucket that refills evenly. Token and leaky bucket are the same seen from two other sides.

The interval bucket is refilled all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import ClassVar, Final

from django_throttle.core.algorithms import base
from django_throttle.core.algorithms.base import CounterParams, RuleLike, State, StepResult
from django_throttle.core.exceptions import InvalidRule
from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.core.texts import gettext_lazy, gettext_noop, listed

# Twice a bucket is the largest sum that a script makes, and doubles are exact up to 2^53.
LARGEST_BUCKET: Final = 2**52
TOO_LONG: Final = gettext_noop("a burst of {:,} at this rate takes longer than a store can count; make it smaller")


@dataclass(frozen=True, slots=True)
class IntervalBucket(CounterParams):
    """A bucket of ``limit`` units, to which each whole ``interval`` since its first use ``brings`` some.

    State: refilled at, units.
    """

    interval: int
    brings: int
    name, wire_id = "interval_bucket", 5

    @property
    def kept(self) -> int:
        return 2

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
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
        return StepResult(
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

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        since, units = state
        _, units = self._refilled(min(since, now), units, now)
        yield base.Backfill(self.limit - units, now)

    def charge_late(self, state: State | None, now: int, late: base.Backfill) -> base.Stored | None:
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


def interval_bucket(rule: RuleLike) -> CounterParams:
    rate = base.rate_of(rule)
    params = IntervalBucket(base.multiplied(rule.burst or rate.limit, rule.enforce_at), rate.window_us, rate.limit)
    if -(-params.limit // rate.limit) * rate.window_us >= LARGEST_BUCKET:
        raise InvalidRule(gettext_lazy(TOO_LONG, params.limit), "burst")
    return params


# A theoretical arrival time is stored as microseconds and three decimal digits, which is what still
# fits a 64-bit integer (and so Redis' smallest encoding) until the year 2262; with fifteen where three are too few.
SHORT: Final = 1000
FINEST: Final = 10**15
# A unit's time is rounded up to a whole number of these parts. Of so many, a rate is too slow by a millionth at most;
# up to the largest bucket that need not come out exactly there are fewer, and it is by a thousandth.
CLOSE: Final = 1_000_000
MAX_BUCKET: Final = 2_000_000_000_000
TOO_LARGE: Final = gettext_noop(
    "a bucket of {:,} is more than can be counted at this rate; {:,} can, and a fixed or sliding window takes {:,}"
)
# The time of a unit is rounded up to what a store counts in; its window is not to become a second longer by that.
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Gcra(CounterParams):
    """A bucket of ``limit`` units that refills evenly. State: theoretical arrival time in microseconds, its fraction.

    ``unit`` and ``bucket`` are the times of one unit and of all, in 1/``fineness`` microseconds, so the first and the
    last unit of a burst are both usable and nothing drifts.
    Source: the ATM Forum's generic cell rate algorithm.
    """

    unit: int
    bucket: int
    fineness: int
    name, wire_id = "gcra", 4
    buckets: ClassVar[int] = 1  # the most that can be used up

    @property
    def is_large(self) -> bool:
        lasts = self.bucket * self.buckets // self.fineness
        return lasts > base.NEAR_US or self.fineness > base.SMALL_COUNT

    @property
    def kept(self) -> int:
        return int(self.fineness > 1)  # else there is no fraction

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        burst, unit, bucket, fineness = self.limit, self.unit, self.bucket, self.fineness
        arrival, fraction = state or (now, 0)
        # The fraction may be one of another fineness, from before the limit was edited.
        used = 0 if arrival < now else (arrival - now) * fineness + min(fraction, fineness - 1)
        most = bucket * self.buckets
        refused_state = None
        if used > most:  # the clock went back, or the rule became smaller
            used = most
            refused_state = now + used // fineness, used % fineness
        retry = 0
        if cost > burst or used + cost * unit > bucket:
            if counts_denied:
                used = min(used + min(cost, burst) * unit, most)
                refused_state = now + used // fineness, used % fineness
            retry = base.NEVER if cost > burst else -(-(used + cost * unit - bucket) // fineness)
        remaining = max(0, (bucket - used) // unit)
        charged = used + cost * unit
        return StepResult(
            retry=retry,
            remaining=remaining,
            reset=-(-used // fineness),
            charged_remaining=remaining - cost,
            charged_reset=-(-charged // fineness),
            charged_state=(now + charged // fineness, charged % fineness) if retry == 0 else None,
            refused_state=refused_state,
        )

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        """What has flowed out since then would have been other charges', or nobody's: only the rest comes back."""
        (arrival, fraction), unit, fineness = state, self.unit, self.fineness
        before = max(0, (reset if fineness == 1 else reset - 1) * fineness - cost * unit)
        back = cost * unit - max(0, (now - since) * fineness - before)
        used = (arrival - now) * fineness + min(fraction, fineness - 1) - back
        if back <= 0:
            return None
        return (now + used // fineness, used % fineness) if used > 0 else base.NOTHING

    def _used(self, state: State, now: int) -> int:
        arrival, fraction = state
        return max(0, (arrival - now) * self.fineness + min(fraction, self.fineness - 1))

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        yield base.Backfill(-(-self._used(state, now) // self.unit), now)

    def charge_late(self, state: State | None, now: int, late: base.Backfill) -> base.Stored | None:
        """What has flowed out since then is no more in it."""
        fineness = self.fineness
        added = max(0, late.cost * self.unit - max(0, now - late.at) * fineness)
        used = min(self.bucket * self.buckets, self._used(state or (now, 0), now) + added)
        return base.Stored((now + used // fineness, used % fineness), -(-used // fineness)) if used else None

    def quota_seconds(self, limit: int, window: float) -> float:
        return limit * self.unit / self.fineness / 1_000_000 * (1 - ROUNDING)

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        # What may still be used up when one unit more fits; what is tolerated beyond the limit is not told.
        left = self.bucket - (remaining + 1 + self.limit - limit) * self.unit
        return -(-(reset * self.fineness - left) // self.fineness)

    def drain_us(self, cost: int) -> float:
        return cost * self.unit / self.fineness

    def until_queue_slot(self, reset: int, cost: int) -> int:
        # Rounded as reset is: nobody waits for nobody.
        return max(0, reset - -(-cost * self.unit // self.fineness))


class IndebtedGcra(Gcra):
    """A bucket whose costs are corrected when they are known: what went beyond it is owed, one more bucket at most."""

    __slots__ = ()
    name, wire_id, lua = "gcra_with_debt", 7, "gcra.lua"
    buckets = 2


class Queue(Gcra):
    """A bucket that has calls wait for their turn: only the last turn is given back, so that no other's moves."""

    __slots__ = ()
    name, wire_id, lua = "gcra_queue", 8, "gcra.lua"

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        arrival, fraction = state
        is_last = arrival + (fraction > 0) == since + reset
        return super().refund(state, now, cost, since, reset) if is_last else None


def params(rule: RuleLike) -> CounterParams:
    """Exact where the interval allows it; otherwise the interval is rounded up, so the rate is never exceeded."""
    rate = base.rate_of(rule)
    queued = None if rule.max_queue is None else rule.max_queue + 1  # the one that runs, and those that wait
    burst = base.multiplied(queued or rule.burst or rate.limit, rule.enforce_at)
    hold = base.hold_of(rule)
    if rule.prepaid:  # the bucket lacks what flows out of it meanwhile, half of it at most
        lacks = min(-(-hold * rate.limit // rate.window_us), (burst - rule.factor) // 2)
        hold = min(hold, lacks * rate.window_us // rate.limit) if hold * rate.limit > rate.window_us else 0
        burst -= lacks if hold else 0
    fineness = _fineness(rate, burst * (IndebtedGcra.buckets if rule.is_measured else 1))
    unit = _unit(rate, fineness)
    bucket = unit * burst
    if rule.max_delay is not None:  # a queue is full, too, where its last place would wait for longer
        bucket = min(bucket, round(rule.max_delay * 1_000_000) * fineness + rule.factor * unit)
    kind = IndebtedGcra if rule.is_measured else Queue if rule.is_queue else Gcra
    return kind(bucket // unit, unit, bucket, fineness, hold=hold)


def _fineness(rate: Rate, burst: int) -> int:
    """How many parts of a microsecond a unit's time is counted in: as few as make it exact, or close enough."""

    def is_countable(fineness: int, least: int = 1) -> bool:
        unit = _unit(rate, fineness)
        return unit >= least and unit * burst < LARGEST_BUCKET

    exact = rate.limit // gcd(rate.limit, rate.window_us)
    most = min(FINEST, (LARGEST_BUCKET - 1 - burst) * rate.limit // (rate.window_us * burst))
    if exact <= SHORT and is_countable(exact):
        return exact
    if is_countable(SHORT, CLOSE):
        return SHORT
    if exact <= FINEST and is_countable(exact):
        return exact
    if most < 1:
        raise InvalidRule(gettext_lazy(TOO_LONG, burst), "burst")
    if burst > MAX_BUCKET:
        raise InvalidRule(gettext_lazy(TOO_LARGE, burst, MAX_BUCKET, MAX_LIMIT), "burst")
    return most


def _unit(rate: Rate, fineness: int) -> int:
    return -(-rate.window_us * fineness // rate.limit)


def token_bucket(rule: RuleLike) -> CounterParams:
    return interval_bucket(rule) if rule.refill == "interval" else params(rule)


def shape(rule: RuleLike, every: str) -> tuple[str, ...]:
    most = [rule.burst or part.limit or 0 for part in rule.parts]
    bursts = listed([gettext_lazy("{:,}", burst) for burst in dict.fromkeys(most)])
    refilled = gettext_lazy("refilled all at once every {window}", window=every) if rule.refill == "interval" else ""
    spaced = gettext_lazy("evenly spaced") if max(most) == 1 else gettext_lazy("bursts up to {bursts}", bursts=bursts)
    return spaced, refilled


_bucket: Final = partial(base.Algorithm, shape=shape, max_multiplied=MAX_BUCKET, is_bucket=True)
TOKEN_BUCKET: Final = _bucket(
    name="token_bucket",
    label="Token bucket",
    help="refilled evenly, with bursts",
    params=token_bucket,
    takes=("burst", "refill"),
)
LEAKY_BUCKET: Final = _bucket(
    name="leaky_bucket",
    label="Leaky bucket",
    help="drained evenly, can delay",
    params=params,
    takes=("burst", "max_delay", "max_queue"),
)
GCRA: Final = _bucket(
    name="gcra", label="GCRA", help="as the token bucket, by its other name", params=params, takes=("burst",)
)
