"""A rule as the few whole numbers that its algorithm computes with, and the steps that it takes."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, gcd
from typing import TYPE_CHECKING, Final, NamedTuple

from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule


# Twice a bucket is the largest sum that a script makes, and doubles are exact up to 2^53.
LARGEST_BUCKET: Final = 2**52
# A theoretical arrival time is stored as microseconds and three decimal digits, which is what still
# fits a 64-bit integer (and so Redis' smallest encoding) until the year 2262; with fifteen where three are too few.
SHORT: Final = 1000
FINEST: Final = 10**15
# A unit's time is rounded up to a whole number of these parts. Of so many, a rate is too slow by a millionth at most;
# up to the largest bucket that need not come out exactly there are fewer, and it is by a thousandth.
CLOSE: Final = 1_000_000
MAX_BUCKET: Final = 2_000_000_000_000
# When a full slot might be free again is anybody's guess; this is ours, in microseconds.
ASK_AGAIN: Final = 5_000_000

TOO_LONG: Final = "a burst of {:,} at this rate takes longer than a store can count; make it smaller"
TOO_LARGE: Final = (
    "a bucket of {:,} is more than can be counted at this rate; {:,} can, and a fixed or sliding window takes {:,}"
)


class Plan(NamedTuple):
    """What a script receives for one rule; all fields are whole numbers of at most 2^53.

    ``limit`` is the most that can be spent at once, ``enforce_at`` times the rule's. The meaning of ``a``, ``b``
    and ``c`` is the algorithm's, times in microseconds: fixed_window: window; calendar_window: where this period
    begins and ends, and where the next ends; sliding_log: window; sliding_window: sub-window, number of
    sub-windows, 1 when strict; gcra: time of one unit and of the whole bucket, in 1/c microseconds, and c;
    interval_bucket: interval, units it brings; concurrency: when to ask again; damper: window.
    """

    algorithm: str
    limit: int
    a: int = 0
    b: int = 0
    c: int = 0


def make_plan(rule: Rule) -> Plan:
    """The plan of a rule that has been checked; a calendar's bounds are the store's to fill in."""
    rate = rule.rate
    if rate is None:
        return Plan(rule.algorithm, rule.limit or 0, ASK_AGAIN)
    most = times(rate.limit, rule.enforce_at)
    if rule.algorithm in ("fixed_window", "sliding_log", "damper"):
        calendar = rule.algorithm == "fixed_window" and is_calendar(rule)
        return Plan("calendar_window" if calendar else rule.algorithm, most, rate.window_us)
    if rule.algorithm == "sliding_window":
        # Rounded up, so that n sub-windows are never shorter than the window.
        sub_window = -(-rate.window_us // rule.resolution)
        return Plan("sliding_window", most, sub_window, rule.resolution, int(rule.strict))
    burst = times(rule.burst or rate.limit, rule.enforce_at)
    if rule.refill == "interval":
        if -(-burst // rate.limit) * rate.window_us >= LARGEST_BUCKET:
            raise InvalidRule(TOO_LONG.format(burst), "burst")
        return Plan("interval_bucket", burst, rate.window_us, rate.limit)
    plan = _bucket(rate, burst, rule.max_delay)
    if plan.limit < rule.factor:
        raise InvalidRule(
            f"one call costs {rule.factor:,}, more than the {plan.limit:,} that max_delay lets wait", "max_delay"
        )
    return plan


def times(number: int, factor: float) -> int:
    """So many times the number, rounded down: 2.3 times 100 is 230, which in doubles it is not."""
    return floor(number * Fraction(repr(factor)))


def thresholds(limit: int, shares: tuple[float, ...]) -> tuple[tuple[float, int], ...]:
    """Each share with the use at which it is reached."""
    return tuple((share, ceil(limit * Fraction(repr(share)))) for share in shares)


def is_calendar(rule: Rule) -> bool:
    """True when the rule's windows begin and end with the calendar's."""
    return rule.timezone is not None or (rule.rate is not None and rule.rate.monthly)


def _bucket(rate: Rate, burst: int, max_delay: float | None) -> Plan:
    """A token bucket with continuous refill, a leaky bucket and GCRA: one algorithm seen from three sides.

    Exact where the interval allows it; otherwise the interval is rounded up, so the rate is never exceeded.
    """
    fineness = _fineness(rate, burst)
    unit = _unit(rate, fineness)
    bucket = unit * burst
    if max_delay is not None:  # a queue is full, too, where its last place would wait for longer
        bucket = min(bucket, round(max_delay * 1_000_000) * fineness + unit)
    return Plan("gcra", bucket // unit, unit, bucket, fineness)


def _fineness(rate: Rate, burst: int) -> int:
    """How many parts of a microsecond a unit's time is counted in: as few as make it exact, or close enough."""

    def fits(fineness: int, least: int = 1) -> bool:
        unit = _unit(rate, fineness)
        return unit >= least and unit * burst < LARGEST_BUCKET

    exact = rate.limit // gcd(rate.limit, rate.window_us)
    most = min(FINEST, (LARGEST_BUCKET - 1 - burst) * rate.limit // (rate.window_us * burst))
    if exact <= SHORT and fits(exact):
        return exact
    if fits(SHORT, CLOSE):
        return SHORT
    if exact <= FINEST and fits(exact):
        return exact
    if most < 1:
        raise InvalidRule(TOO_LONG.format(burst), "burst")
    if burst > MAX_BUCKET:
        raise InvalidRule(TOO_LARGE.format(burst, MAX_BUCKET, MAX_LIMIT), "burst")
    return most


def _unit(rate: Rate, fineness: int) -> int:
    return -(-rate.window_us * fineness // rate.limit)


State = tuple[int, ...]
NEVER: Final = -1


class Step(NamedTuple):
    """What an algorithm says; times in microseconds from now.

    ``remaining`` and ``reset`` are before the charge, ``charged_reset`` after it. ``retry`` is 0 when
    the cost fits, NEVER when it cannot. ``kept`` is a state to store although the call is refused:
    a counted denial, or a repaired clock.
    """

    remaining: int
    retry: int
    reset: int
    charged_reset: int
    charged: State | None
    kept: State | None
