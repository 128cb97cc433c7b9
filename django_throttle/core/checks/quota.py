"""Quotas: what is warned of before, and what is tolerated beyond the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_throttle.core.checks.known import MAX_LOG, MAX_TIMES
from django_throttle.core.plan import times
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule


def _enforced(rule: Rule) -> None:
    given = rule.enforce_at
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 <= given <= MAX_TIMES:  # nor NaN
        is_percent = type(given) in (int, float) and MAX_TIMES < given <= MAX_TIMES * 100
        percent = f"; {given:g} % is {given / 100:g}" if is_percent else ""
        raise InvalidRule(f"enforce_at is a number from 1 to {MAX_TIMES}, not {given!r}{percent}", "enforce_at")
    if given == 1:
        return
    if rule.algorithm == "concurrency" or rule.action == "delay":
        raise InvalidRule(
            "enforce_at belongs to rates that refuse: what is held, or waits, has one limit", "enforce_at"
        )
    limits = [rate.limit for rate in (rule.rate, *rule.rates) if rate is not None]
    most = times(max([*limits, rule.burst or 0]), given)
    longest = MAX_LOG if rule.algorithm == "sliding_log" else MAX_LIMIT
    if most > longest:
        raise InvalidRule(
            f"calls would be refused at {most:,} only, more than the {longest:,} that can be counted", "enforce_at"
        )


def _warned(rule: Rule) -> None:
    if not rule.warn_at:
        return
    if rule.algorithm == "concurrency":
        raise InvalidRule("warn_at belongs to rates: what is held at once has no window to be warned in", "warn_at")
    if rule.warn_at[-1] > rule.enforce_at:
        share = f"{rule.warn_at[-1]:g}"
        percent = f"; {share} % is {rule.warn_at[-1] / 100:g}" if rule.warn_at[-1] >= 2 else ""
        raise InvalidRule(
            f"use never gets to {share} times the limit: calls are refused at {rule.enforce_at:g}{percent}", "warn_at"
        )


QUOTA_CHECKS: Final = (_enforced, _warned)
