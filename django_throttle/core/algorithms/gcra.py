"""Buckets: GCRA, the token bucket and the leaky bucket, which are the same algorithm, and the interval bucket.

GCRA refills evenly. The interval bucket is refilled all at once.
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
from django_throttle.core.texts import gettext_noop, listed, translatable

# The time of a bucket, in parts of a microsecond. Scripts add up two buckets, and doubles are exact up to 2^53.
MAX_BUCKET_PARTS: Final = 2**52
TOO_LONG: Final = gettext_noop("a burst of {:,} at this rate takes longer than a store can count; make it smaller")


@dataclass(frozen=True, slots=True)
class IntervalBucket(CounterParams):
    """A bucket of ``limit`` units. Each whole ``interval`` since the first use, or since it was full, adds units.

    State: time of the last refill, units.
    """

    interval: int
    refill_units: int  #: added after each interval
    name, wire_id = "interval_bucket", 5

    @property
    def record_numbers(self) -> int:
        return 2

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        burst, interval, refill_units = self.limit, self.interval, self.refill_units
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
            retry = base.NEVER if cost > burst else since + -(-(cost - units) // refill_units) * interval - now
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
        units = min(self.limit, units + min(refills, -(-self.limit // self.refill_units)) * self.refill_units)
        return (now if units == self.limit else since + refills * self.interval), units

    def _full_at(self, since: int, units: int) -> int:
        return since + -(-(self.limit - units) // self.refill_units) * self.interval

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        """Refund nothing if the bucket was refilled since, as it may have been full. See ``CounterParams.refund``."""
        start, units = state
        if start > since or now >= start + self.interval:
            return None
        # A bucket that was full at the charge starts its interval with the next charge.
        return (now if start == since else start), min(self.limit, units + cost)

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        since, units = state
        _, units = self._refilled(min(since, now), units, now)
        yield base.Backfill(self.limit - units, now)

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        since, units = state or (now, self.limit)
        since, units = self._refilled(min(since, now), units, now)
        units = max(0, units - backfill.cost)
        return base.Stored((since, units), self._full_at(since, units) - now)

    def quota_seconds(self, limit: int, window: float) -> float:
        return -(-limit // self.refill_units) * self.interval / 1_000_000

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        return (reset - 1) % self.interval + 1

    def window_left(self, reset: int) -> int | None:
        return (reset - 1) % self.interval + 1  # until the next refill


def interval_bucket(rule: RuleLike) -> CounterParams:
    rate = base.rate_of(rule)
    params = IntervalBucket(base.multiplied(rule.burst or rate.limit, rule.enforce_at), rate.window_us, rate.limit)
    if -(-params.limit // rate.limit) * rate.window_us >= MAX_BUCKET_PARTS:
        raise InvalidRule(translatable(TOO_LONG, params.limit), "burst")
    return params


# Parts of a microsecond in which a theoretical arrival time is stored. With 1,000 it fits a 64-bit integer, and so
# Redis' smallest encoding, until the year 2262. More are used only if these are too few.
USUAL_FINENESS: Final = 1000
MAX_FINENESS: Final = 10**15
# The time of a unit is rounded up to whole parts. With at least a million parts, a rate is too slow by at most a
# millionth. A large bucket has fewer parts a unit; up to MAX_BUCKET_UNITS the error is at most a thousandth.
MIN_UNIT_PARTS: Final = 1_000_000
MAX_BUCKET_UNITS: Final = 2_000_000_000_000
TOO_LARGE: Final = gettext_noop(
    "a bucket of {:,} is more than can be counted at this rate; {:,} can, and a fixed or sliding window takes {:,}"
)
# The time of a unit is rounded up, which must not make its window, rounded up to seconds, a second longer.
ROUNDING_SHARE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Gcra(CounterParams):
    """A bucket of ``limit`` units that refills evenly. State: theoretical arrival time in microseconds, its fraction.

    Source: the ATM Forum's generic cell rate algorithm.
    """

    unit: int  #: time of a unit, in 1/``fineness`` microseconds
    bucket: int  #: time of all units, in 1/``fineness`` microseconds
    fineness: int  #: parts of a microsecond in which times are counted, so that they do not drift
    name, wire_id = "gcra", 4
    buckets: ClassVar[int] = 1  #: buckets that can be used up

    @property
    def is_large(self) -> bool:
        lifetime_us = self.bucket * self.buckets // self.fineness
        return lifetime_us > base.MAX_NEAR_US or self.fineness > base.MAX_SMALL_COUNT

    @property
    def record_numbers(self) -> int:
        return int(self.fineness > 1)  # the fraction

    def step(self, state: State | None, now: int, cost: int, counts_denied: bool) -> StepResult:
        burst, unit, bucket, fineness = self.limit, self.unit, self.bucket, self.fineness
        arrival, fraction = state or (now, 0)
        # The fraction may be in another fineness, from before the limit was edited.
        used = 0 if arrival < now else (arrival - now) * fineness + min(fraction, fineness - 1)
        max_used = bucket * self.buckets
        refused_state = None
        if used > max_used:  # the clock went back, or the limit was lowered
            used = max_used
            refused_state = now + used // fineness, used % fineness
        retry = 0
        if cost > burst or used + cost * unit > bucket:
            if counts_denied:
                used = min(used + min(cost, burst) * unit, max_used)
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
        """Refund the units that have not drained since the charge. See ``CounterParams.refund``."""
        (arrival, fraction), unit, fineness = state, self.unit, self.fineness
        used_before = max(0, (reset if fineness == 1 else reset - 1) * fineness - cost * unit)
        refunded = cost * unit - max(0, (now - since) * fineness - used_before)
        used = (arrival - now) * fineness + min(fraction, fineness - 1) - refunded
        if refunded <= 0:
            return None
        return (now + used // fineness, used % fineness) if used > 0 else base.EMPTY_STATE

    def _used(self, state: State, now: int) -> int:
        arrival, fraction = state
        return max(0, (arrival - now) * self.fineness + min(fraction, self.fineness - 1))

    def late_charges(self, state: State, now: int) -> Iterator[base.Backfill]:
        yield base.Backfill(-(-self._used(state, now) // self.unit), now)

    def charge_late(self, state: State | None, now: int, backfill: base.Backfill) -> base.Stored | None:
        """Charge the units that have not drained since. See ``CounterParams.charge_late``."""
        fineness = self.fineness
        added = max(0, backfill.cost * self.unit - max(0, now - backfill.at) * fineness)
        used = min(self.bucket * self.buckets, self._used(state or (now, 0), now) + added)
        return base.Stored((now + used // fineness, used % fineness), -(-used // fineness)) if used else None

    def quota_seconds(self, limit: int, window: float) -> float:
        return limit * self.unit / self.fineness / 1_000_000 * (1 - ROUNDING_SHARE)

    def until_more(self, limit: int, remaining: int, reset: int) -> int:
        # The time that may be used up when one unit more fits. ``remaining`` is without the tolerance beyond the limit.
        max_used = self.bucket - (remaining + 1 + self.limit - limit) * self.unit
        return -(-(reset * self.fineness - max_used) // self.fineness)

    def drain_us(self, cost: int) -> float:
        return cost * self.unit / self.fineness

    def until_queue_slot(self, reset: int, cost: int) -> int:
        # Rounded like ``reset``, so that the first call does not wait.
        return max(0, reset - -(-cost * self.unit // self.fineness))


class IndebtedGcra(Gcra):
    """A bucket whose costs are corrected later. Units beyond the bucket are owed, up to another bucket."""

    __slots__ = ()
    name, wire_id, lua = "gcra_with_debt", 7, "gcra.lua"
    buckets = 2


class Queue(Gcra):
    """A bucket whose calls wait for queue slots. Only the last slot is refunded, so that no other slot moves."""

    __slots__ = ()
    name, wire_id, lua = "gcra_queue", 8, "gcra.lua"

    def refund(self, state: State, now: int, cost: int, since: int, reset: int) -> State | None:
        arrival, fraction = state
        is_last = arrival + (fraction > 0) == since + reset
        return super().refund(state, now, cost, since, reset) if is_last else None


def params(rule: RuleLike) -> CounterParams:
    """Return the parameters of a bucket that refills evenly. Inexact times are rounded up, so that the rate is kept."""
    rate = base.rate_of(rule)
    queue_length = None if rule.max_queue is None else rule.max_queue + 1  # the waiting calls and the running call
    burst = base.multiplied(queue_length or rule.burst or rate.limit, rule.enforce_at)
    hold_us = base.hold_us_of(rule)
    if rule.prepaid:  # the bucket is smaller by the units that drain while prepaid units are kept, at most by half
        drained = min(-(-hold_us * rate.limit // rate.window_us), (burst - rule.factor) // 2)
        hold_us = min(hold_us, drained * rate.window_us // rate.limit) if hold_us * rate.limit > rate.window_us else 0
        burst -= drained if hold_us else 0
    fineness = _fineness(rate, burst * (IndebtedGcra.buckets if rule.is_measured else 1))
    unit = _unit(rate, fineness)
    bucket = unit * burst
    if rule.max_delay is not None:  # limits the length of the queue, too
        bucket = min(bucket, round(rule.max_delay * 1_000_000) * fineness + rule.factor * unit)
    kind = IndebtedGcra if rule.is_measured else Queue if rule.is_queue else Gcra
    return kind(bucket // unit, unit, bucket, fineness, hold_us=hold_us)


def _fineness(rate: Rate, burst: int) -> int:
    """Return the parts of a microsecond for the time of a unit: as few as make it exact, or close enough."""

    def is_countable(fineness: int, min_unit: int = 1) -> bool:
        unit = _unit(rate, fineness)
        return unit >= min_unit and unit * burst < MAX_BUCKET_PARTS

    exact = rate.limit // gcd(rate.limit, rate.window_us)
    max_fineness = min(MAX_FINENESS, (MAX_BUCKET_PARTS - 1 - burst) * rate.limit // (rate.window_us * burst))
    if exact <= USUAL_FINENESS and is_countable(exact):
        return exact
    if is_countable(USUAL_FINENESS, MIN_UNIT_PARTS):
        return USUAL_FINENESS
    if exact <= MAX_FINENESS and is_countable(exact):
        return exact
    if max_fineness < 1:
        raise InvalidRule(translatable(TOO_LONG, burst), "burst")
    if burst > MAX_BUCKET_UNITS:
        raise InvalidRule(translatable(TOO_LARGE, burst, MAX_BUCKET_UNITS, MAX_LIMIT), "burst")
    return max_fineness


def _unit(rate: Rate, fineness: int) -> int:
    return -(-rate.window_us * fineness // rate.limit)


def token_bucket(rule: RuleLike) -> CounterParams:
    return interval_bucket(rule) if rule.refill == "interval" else params(rule)


def shape(rule: RuleLike, windows: str) -> tuple[str, ...]:
    sizes = [rule.burst or part.limit or 0 for part in rule.parts]
    bursts = listed([translatable("{:,}", size) for size in dict.fromkeys(sizes)])
    refilled = translatable("refilled all at once every {window}", window=windows) if rule.refill == "interval" else ""
    spaced = translatable("evenly spaced") if max(sizes) == 1 else translatable("bursts up to {bursts}", bursts=bursts)
    return spaced, refilled


_bucket: Final = partial(base.Algorithm, shape=shape, max_multiplied=MAX_BUCKET_UNITS, is_bucket=True)
TOKEN_BUCKET: Final = _bucket(
    name="token_bucket",
    label="Token bucket",
    help="steady, allows bursts",
    params=token_bucket,
    takes=("burst", "refill"),
)
LEAKY_BUCKET: Final = _bucket(
    name="leaky_bucket",
    label="Leaky bucket",
    help="steady, can queue",
    params=params,
    takes=("burst", "max_delay", "max_queue"),
)
GCRA: Final = _bucket(name="gcra", label="GCRA", help="as the token bucket", params=params, takes=("burst",))
