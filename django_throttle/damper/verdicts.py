"""What a damper says of an attempt."""

from __future__ import annotations

from django_throttle.core.decision import Decision, Outcome, Reason
from django_throttle.core.rule import Rule


def passing(rule: Rule, ident: str, left: int, rest: float, factor: float) -> Outcome:
    """It passes; ``left`` is what nobody had attempted lately, ``rest`` the seconds until that is the whole limit."""
    shadow, window = rule.is_shadow, rule.window
    return Outcome(rule.name, ident, True, rule.plan.limit, left, 0.0, rest, Reason.WITHIN, shadow, window, 0.0, factor)


def suppressed(rule: Rule, ident: str, wait: float, rest: float, factor: float) -> Outcome:
    """It is refused, and may be tried again after ``wait`` seconds."""
    shadow, window = rule.is_shadow, rule.window
    rest = max(wait, rest)
    return Outcome(
        rule.name, ident, False, rule.plan.limit, 0, wait, rest, Reason.SUPPRESSED, shadow, window, 0.0, factor
    )


def decided(outcome: Outcome) -> Decision:
    """The decision on a call that is under this rule alone: what ``conclude`` says, in a third of its time."""
    if outcome.shadow:
        return Decision(outcomes=(outcome,))
    _, _, allowed, limit, remaining, retry_after, reset_after, *_ = outcome
    return Decision(allowed, limit, remaining, retry_after, reset_after, outcome.rule, (outcome,))
