"""What each algorithm promises: the most that passes in any span of time, and the least share of its rate.

A span is half open, ``(now - span, now]``, in microseconds; the clock does not go back in it, and the rule is
not edited. Both figures are stated here by themselves, without the algorithms; ``tests/published.py`` looks for
a history that breaks them.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from django_throttle.core import Rule
from django_throttle.core.algorithms.gcra import Gcra, IntervalBucket
from django_throttle.core.algorithms.sliding_window import SlidingWindow
from django_throttle.core.rate import period_of

HOUR = 3_600_000_000
# The shortest that a period can be: clocks go forward by an hour, and February has 28 days.
SHORTEST = {"hour": HOUR, "day": 23 * HOUR, "week": 167 * HOUR, "month": 28 * 24 * HOUR}


def most(rule: Rule, span: int | None = None) -> int:
    """The most that passes in any span no longer than the rate's window, which is taken when None is given.

    There are histories that reach it.
    """
    asked = rule.rate.window_us if span is None else span
    if rule.params.name == "calendar_window":
        return calendar_most(rule, asked)
    return MOST[rule.params.name](rule.params, asked)


def calendar_most(rule: Rule, span: int) -> int:
    """A span touches two periods, and a third one when the one between is shorter than it."""
    period = period_of(rule.rate)
    usual = SHORTEST[period] if period == "month" or rule.timezone not in (None, "UTC") else rule.rate.window_us
    return rule.params.limit * (2 if span <= usual else 3)


def measured_most(limit: int, in_flight: Iterable[tuple[int, int]]) -> int:
    """The most that calls come to of what is there at a moment; ``in_flight`` are what each reserved, and came to.

    A call passes where all that is charged, its reserve included, fits. After the last that passes, what is charged
    grows only by what the calls then in flight, itself included, come to beyond their reserves.
    """
    return limit + sum(max(0, used - reserved) for reserved, used in in_flight)


def sliding_window_most(plan: SlidingWindow, span: int) -> int:
    """L + floor(L (s - r) / s), where r = n s - span + 2, or s if that is less.

    Let the last call of the span pass in sub-window k when r of it is left. Sub-windows k - n + 1 to k count
    whole; let S be what they then hold. Of the one before them, k - n, the span holds at most all, P <= L, and
    that was taken when p >= 1 of it was left. Either the span does not reach it, and holds at most S <= L; or
    n s + p - r < span, so r >= n s - span + 2. The call passed, so S + ceil(P r / s) <= L, and the span
    holds S + P <= L + P - ceil(P r / s), which grows with P up to the value above. It is reached: L in the last
    microsecond of a sub-window, and what then passes n sub-windows later when r of it is left.

    So 2 L - 1 in a window, for every n, as long as L is at most half the microseconds of a sub-window; but only L
    in n - 1 sub-windows. Strict counts the oldest whole, n + 1 sub-windows in all, and no span of n reaches
    further.
    """
    limit, s, n, strict = plan.limit, plan.sub_window, plan.n, plan.strict
    if strict:
        return limit
    r = min(s, n * s - span + 2)
    return limit + limit * (s - r) // s


def gcra_most(plan: Gcra, span: int) -> int:
    """What the bucket holds, and what comes back between the first and the last moment of the span.

    For a rate and a bucket that whole microseconds fit, B + L - 1 in a window. Reached while a unit takes at
    least one microsecond.
    """
    if plan.bucket == plan.unit:
        return 1 + (span - 1) // gcra_interval(plan)
    return (plan.bucket + (span - 1) * plan.fineness) // plan.unit


def interval_bucket_most(plan: IntervalBucket, span: int) -> int:
    """A bucket that a refill awaits lacks a unit, and a span no longer than an interval sees one refill.

    A full bucket's interval begins with its next use, and ends after the span.
    """
    return plan.limit - 1 + min(plan.limit, plan.refill_units)


MOST: dict[str, Callable[[Any, int], int]] = {
    # A span no longer than a window touches two. A log holds what was taken in the last window.
    "fixed_window": lambda plan, span: 2 * plan.limit,
    "sliding_log": lambda plan, span: plan.limit,
    "sliding_window": sliding_window_most,
    "gcra": gcra_most,
    "gcra_queue": gcra_most,
    "interval_bucket": interval_bucket_most,
}


def share(rule: Rule) -> Fraction:
    """At least this share of its rate a client gets that asks for one unit whenever one fits, for ever."""
    plan, rate = rule.params, rule.rate
    if isinstance(plan, SlidingWindow):
        # Sub-windows are whole microseconds, rounded up.
        return sliding_window_share(plan) * Fraction(rate.window_us, plan.sub_window * plan.n)
    if isinstance(plan, Gcra):
        return Fraction(rate.window_us, rate.limit) / gcra_interval(plan)
    if isinstance(plan, IntervalBucket):
        return Fraction(
            min(plan.limit, plan.refill_units), plan.refill_units
        )  # what a refill brings beyond the bucket is lost
    return Fraction(1)


def sliding_window_share(plan: SlidingWindow) -> Fraction:
    """1 - 1 / (n + 1) strict, else 1 - 1 / max(L, n + 1).

    When 1 microsecond is left of sub-window k such a client has taken all that fits: with c in sub-window k - n
    and S in those since, S + ceil(c / s) = L, so S >= L - 1, and S + c >= L (L at most the microseconds of a
    sub-window). The first makes it L - 1 of L in any n sub-windows, the second L in any n + 1. Strict, S + c = L.
    """
    limit, n, strict = plan.limit, plan.n, plan.strict
    return 1 - Fraction(1, n + 1 if strict else max(limit, n + 1))


def gcra_interval(plan: Gcra) -> Fraction:
    """The microseconds from one unit to the next; whole ones when the bucket has no room to keep the rest."""
    return Fraction(-(-plan.unit // plan.fineness)) if plan.bucket == plan.unit else Fraction(plan.unit, plan.fineness)
