"""What overrides make of rules: another limit, none at all, or a refusal without a question to the store.

Each rule goes by the first override, in the order of their ranks, that names it and fits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Final

from django_throttle.core.checks import BUCKETS, MAX_DAMPED, MAX_LOG
from django_throttle.core.decision import Decision, Outcome, Reason, conclude
from django_throttle.core.flow import Flow
from django_throttle.core.override import EVERY_RULE, Override
from django_throttle.core.plan import MAX_BUCKET, times
from django_throttle.core.rate import MAX_LIMIT, Rate
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidRule

# What a multiplied limit grows to at most.
_LARGEST: Final = {"sliding_log": MAX_LOG, "damper": MAX_DAMPED, **dict.fromkeys(BUCKETS, MAX_BUCKET)}
Change = Callable[[Rule, Override], Rule | None]


def relieved(rule: Rule, ranked: Sequence[Override], change: Change) -> Rule | None:
    """The rule as it holds for a caller with these overrides; None when it does not hold.

    ``change`` is ``changed``, or what remembers its results.
    """
    return _first(rule, ranked, change)[1]


def blocking(rules: Iterable[Rule], ranked: Sequence[Override], change: Change, now: float) -> tuple[Outcome, ...]:
    """The refusals of a call that these rules cover, one a rate; empty when no override blocks it.

    A call that no rule covers is blocked by an override of every rule. A rule that only records blocks all the same.
    """
    if not any(override.effect == "block" for override in ranked):
        return ()
    found: list[Outcome] = []
    covered = False
    for rule in rules:
        covered = True
        override, _ = _first(rule, ranked, change)
        if override is not None and override.effect == "block":
            limits = [(part.plan.limit - part.tolerance, part.window) for part in rule.parts]
            found += [_refusal(override, now, rule.name, limit, window) for limit, window in limits]
    if not covered:
        general = next((override for override in ranked if override.names_every_rule), None)
        if general is not None and general.effect == "block":
            found.append(_refusal(general, now))
    return tuple(found)


def blocked(blocks: tuple[Outcome, ...], charges: Flow[Decision]) -> Flow[Decision]:
    """Refuse what an operator's override blocks, without the store; where blocks only watch, decide the charges too."""
    if any(not block.shadow for block in blocks):
        return conclude(blocks)
    decision = yield from charges
    return decision._replace(outcomes=decision.outcomes + blocks)


def changed(rule: Rule, override: Override) -> Rule | None:
    """The rule with what an override puts in the place of its limit; None when the override does not fit it.

    What was counted goes on counting, unless the window is another one. Only a bucket, which remembers a time
    rather than a count, starts afresh where it becomes larger: by its old time it would still be empty.
    """
    try:
        new = _CHANGES[override.effect](rule, override)
    except InvalidRule:
        return None
    if new is None or rule.algorithm not in BUCKETS or not _is_larger(new, rule):
        return new
    return replace(new, limit=None, variant=f"{_rates(new)}, {new.burst}")


def _first(rule: Rule, ranked: Sequence[Override], change: Change) -> tuple[Override | None, Rule | None]:
    """The override that the rule goes by, and what becomes of the rule."""
    for override in ranked:
        if not override.names(rule.name):
            continue
        if override.effect == "block":
            return override, rule
        if override.effect == "exempt" and not rule.is_concurrency:
            return override, None
        new = change(rule, override)
        if new is not None:
            return override, new
    return None, rule


def _refusal(
    override: Override, now: float, rule: str = EVERY_RULE, limit: int = 0, window: float | None = None
) -> Outcome:
    ends = None if override.until is None else max(0.0, override.until - now)
    return Outcome(rule, override.subject, False, limit, 0, ends, ends or 0.0, Reason.BLOCKED, False, window)


def _watched(rule: Rule, override: Override) -> Rule:
    """What an exempt caller holds open counts all the same, so that the count is true when the exemption ends."""
    return replace(rule, limit=MAX_LIMIT, action="shadow", on_store_failure="allow")


def _multiplied(rule: Rule, override: Override) -> Rule:
    most = floor(_LARGEST.get(rule.algorithm, MAX_LIMIT) / Fraction(repr(rule.enforce_at)))

    def multiple(limit: int) -> int:
        return max(rule.factor, min(max(most, limit), times(limit, override.factor or 1)))

    if rule.is_concurrency:
        return replace(rule, limit=multiple(rule.limit or 1))
    burst = None if rule.burst is None else multiple(rule.burst)
    return _with_rates(rule, tuple(replace(rate, limit=multiple(rate.limit)) for rate in _rates(rule)), burst)


def _replaced(rule: Rule, override: Override) -> Rule | None:
    if rule.is_concurrency:
        return None if override.limit is None else replace(rule, limit=override.limit)
    if not override.rates or (rule.algorithm != "fixed_window" and any(rate.monthly for rate in override.rates)):
        return None
    most = max(rate.limit for rate in override.rates)
    return _with_rates(rule, override.rates, None if rule.burst is None else min(rule.burst, most))


def _with_rates(rule: Rule, rates: tuple[Rate, ...], burst: int | None) -> Rule:
    if len(rates) == 1:
        return replace(rule, rate=rates[0], rates=(), limit=None, burst=burst)
    return replace(rule, rate=None, rates=rates, limit=None, burst=burst)


def _rates(rule: Rule) -> tuple[Rate, ...]:
    return rule.rates or ((rule.rate,) if rule.rate is not None else ())


def _is_larger(new: Rule, old: Rule) -> bool:
    """True when it admits more in some window that the old one has too."""
    before = {part.window: part for part in old.parts}
    pairs = [(part, before[part.window]) for part in new.parts if part.window in before]
    return any((part.limit or 0, part.plan.limit) > (was.limit or 0, was.plan.limit) for part, was in pairs)


_CHANGES: Final[dict[str, Callable[[Rule, Override], Rule | None]]] = {
    "exempt": _watched,
    "multiply": _multiplied,
    "replace": _replaced,
}
