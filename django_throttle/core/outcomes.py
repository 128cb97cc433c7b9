"""What a store's answers mean: one outcome for each charge."""

from __future__ import annotations

from django_throttle.core.algorithms import NEVER
from django_throttle.core.command import Answer, Charge, Decide, passes
from django_throttle.core.decision import Outcome, Reason
from django_throttle.exceptions import StoreError


def outcomes_of(command: Decide, answers: tuple[Answer, ...]) -> tuple[Outcome, ...]:
    """What each rule says, in the order of the charges."""
    granted = command.commit and all(map(passes, command.charges, answers))
    return tuple([_outcome(charge, answer, granted) for charge, answer in zip(command.charges, answers, strict=True)])


def _outcome(charge: Charge, answer: Answer, charged: bool) -> Outcome:
    rule, (retry, remaining, reset, _) = charge.rule, answer
    return Outcome(
        rule.name,
        charge.ident,
        retry == 0,
        rule.plan.limit - rule.tolerance,
        max(0, remaining - rule.tolerance) if rule.tolerance else remaining,
        None if retry == NEVER else retry / 1_000_000,
        reset / 1_000_000,
        Reason.WITHIN if retry == 0 else _reason(retry),
        rule.is_shadow,
        rule.window,
        _delay(charge, answer, charged) if rule.action == "delay" and retry == 0 else 0.0,
        0.0,
        rule.plan,
        rule.unit,
        (rule.plan.limit - rule.tolerance) // rule.factor if retry == NEVER else None,
    )


def _delay(charge: Charge, answer: Answer, charged: bool) -> float:
    """How long a queued call waits for its turn: all that was queued before it."""
    _, _, unit, _, fineness = charge.rule.plan
    own = -(-charge.cost * unit // fineness) if charged else 0  # rounded as reset is: nobody waits for nobody
    return max(0, answer.reset - own) / 1_000_000


def _reason(retry: int) -> Reason:
    return Reason.TOO_COSTLY if retry == NEVER else Reason.EXCEEDED


def outcome_without_store(charge: Charge, error: StoreError, *, allowed: bool) -> Outcome:
    """What a rule's failure policy says without the store."""
    rule = charge.rule
    return Outcome(
        rule=rule.name,
        ident=charge.ident,
        allowed=allowed,
        limit=rule.plan.limit - rule.tolerance,
        remaining=rule.plan.limit - rule.tolerance if allowed else 0,
        retry_after=0.0 if allowed else error.retry_after,
        reset_after=0.0 if allowed else error.retry_after,
        reason=Reason.STORE_FAILED,
        shadow=rule.is_shadow,
        window=rule.window,
    )
