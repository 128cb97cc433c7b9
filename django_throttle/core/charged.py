"""What doors have charged for a call so far, and what of it goes back when a later one knows better who is calling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from django_throttle.core.command import Refund, paid_under
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
