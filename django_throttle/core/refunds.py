"""Charges of doors, and what goes back of them: by a later door, or once the answer is known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from django_throttle.core.commands import Charge, Refund, answered, paid_under
from django_throttle.core.decision import Decision, Lease, Outcome, Reason
from django_throttle.core.flow import Flow, refund, release
from django_throttle.core.rule import Rule

Pair = tuple[str, str]  # a rule's name, an ident


@dataclass(frozen=True, slots=True)
class Charged:
    """What each rule was charged under each ident, and by what it can go back; False when nothing was."""

    costs: Mapping[Pair, int] = field(default_factory=dict)
    receipts: tuple[Refund, ...] = ()
    leases: tuple[Lease, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.costs)

    def covers(self, rule: str) -> bool:
        """Whether the rule was charged at all, under any ident."""
        return any(name == rule for name, _ in self.costs)

    def mistaken(self, outcomes: Iterable[Outcome]) -> frozenset[Pair]:
        """Those that were charged under another ident than the one by which the same rule has decided now."""
        known: dict[str, set[str]] = {}
        for outcome in outcomes:
            if not (outcome.shadow and outcome.reason is Reason.BLOCKED):  # its ident is an override's subject
                known.setdefault(outcome.rule, set()).add(outcome.ident)
        return frozenset(pair for pair in self.costs if pair[0] in known and pair[1] not in known[pair[0]])


NOTHING = Charged()


def corrected(decided: Flow[Decision], charged: Charged, rule_named: Callable[[str], Rule | None]) -> Flow[Decision]:
    """Decide, and give back what was charged under an ident that has turned out not to be the caller's."""
    decision = yield from decided
    wrong = charged.mistaken(decision.outcomes)
    if wrong:
        yield from _given_back(charged, wrong, rule_named)
    return decision


def _given_back(charged: Charged, wrong: Collection[Pair], rule_named: Callable[[str], Rule | None]) -> Flow[None]:
    for receipt in charged.receipts:
        yield from refund(paid_under(receipt, wrong))
    found = [(rule_named(name), ident) for name, ident in wrong]
    held = {(rule.id, ident) for rule, ident in found if rule is not None and rule.is_concurrency}
    for lease in charged.leases:
        yield from release(Lease(lease.id, tuple(hold for hold in lease.holds if hold in held)))


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
    reset_after = max(0.0, outcome.reset_after - charge.rule.plan.drain_us(charge.cost) / 1_000_000)
    return outcome._replace(remaining=remaining, reset_after=reset_after if remaining < outcome.limit else 0.0)
