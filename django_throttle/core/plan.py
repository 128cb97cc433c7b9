"""A rule as the few whole numbers that its algorithm computes with."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Final, NamedTuple

from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule

# Twice a bucket is the largest sum that a script makes, and doubles are exact up to 2^53.
LARGEST_BUCKET: Final = 2**52
# A theoretical arrival time is stored as microseconds and three decimal digits, which is what still
# fits a 64-bit integer (and so Redis' smallest encoding) until the year 2262.
FINEST: Final = 1000
# When a full slot might be free again is anybody's guess; this is ours, in microseconds.
ASK_AGAIN: Final = 5_000_000


class Plan(NamedTuple):
    """What a script receives for one rule; all fields are whole numbers of at most 2^53.

    ``limit`` is the most that can be spent at once. The meaning of ``a``, ``b`` and ``c`` is the
    algorithm's: windows: sub-window in microseconds, number of sub-windows, 1 when strict; buckets:
    time of one unit and of the whole bucket, in 1/c microseconds, and c; concurrency: when to ask
    again, in microseconds.
    """

    algorithm: str
    limit: int
    a: int = 0
    b: int = 0
    c: int = 0


def make_plan(rule: Rule) -> Plan:
    """The plan of a rule that has been checked."""
    if rule.rate is None:
        return Plan(rule.algorithm, rule.limit or 0, ASK_AGAIN)
    if rule.algorithm == "fixed_window":
        return Plan(rule.algorithm, rule.rate.limit, rule.rate.window_us)
    if rule.algorithm == "sliding_window":
        # Rounded up, so that n sub-windows are never shorter than the window.
        sub_window = -(-rule.rate.window_us // rule.resolution)
        return Plan(rule.algorithm, rule.rate.limit, sub_window, rule.resolution, int(rule.strict))
    # Token bucket with continuous refill and GCRA are the same algorithm seen from two sides.
    return Plan("gcra", *_bucket(rule.rate.limit, rule.rate.window_us, rule.burst or rule.rate.limit))


def _bucket(limit: int, window: int, burst: int) -> tuple[int, int, int, int]:
    """(burst, time of one unit, time of the bucket, fineness): exact where the interval allows it.

    Otherwise the interval is rounded up to a thousandth of a microsecond, so the rate is never exceeded.
    """
    exact = limit // gcd(limit, window)
    for fineness in (exact, FINEST, 1):
        unit = -(-window * fineness // limit)
        if fineness <= FINEST and unit * burst < LARGEST_BUCKET:
            return burst, unit, unit * burst, fineness
    raise InvalidRule(f"a burst of {burst} at this rate takes longer than a store can count; make it smaller")
