"""What is left once an answer has been given, by rules that count only some answers."""

from __future__ import annotations

from django_throttle.core.command import Charge, answered
from django_throttle.core.decision import Decision, Outcome


def settled(decision: Decision, status: int) -> Decision:
    """The decision as it reads after an answer of that HTTP status: what is then given back is there again."""
    back = answered(decision.receipt, status) if decision.receipt else None
    if back is None:
        return decision
    charges = {(paid.charge.rule.name, paid.charge.rule.window): paid.charge for paid in back.paid}
    outcomes = [_without(charges.get((one.rule, one.window)), one) for one in decision.outcomes]
    return decision._replace(outcomes=tuple(outcomes))


def _without(charge: Charge | None, outcome: Outcome) -> Outcome:
    """As if it had not been charged; of what is tolerated beyond the limit nobody is told how much is left."""
    if charge is None or (charge.rule.tolerance and not outcome.remaining):
        return outcome
    remaining = min(outcome.limit, outcome.remaining + charge.cost)
    reset_after, plan = outcome.reset_after, charge.rule.plan
    if plan.algorithm == "gcra":
        reset_after = max(0.0, reset_after - charge.cost * plan.a / plan.c / 1_000_000)
    return outcome._replace(remaining=remaining, reset_after=reset_after if remaining < outcome.limit else 0.0)
