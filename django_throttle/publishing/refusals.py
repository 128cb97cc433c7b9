"""What a publisher was refused a moment ago, it is refused again, to whatever group and without asking how large.

Whoever has used up its budget could otherwise name another group each time, and have the store asked for the size of
each and then for the decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from django.core.exceptions import SynchronousOnlyOperation

from django_throttle.core.command import Charge
from django_throttle.core.decision import Decision, Outcome, conclude
from django_throttle.core.rule import Rule
from django_throttle.facts import Facts
from django_throttle.rulebook import Snapshot
from django_throttle.stores.base import Store
from django_throttle.stores.denials import LONGEST

MOST: Final = 4096


class _Refused(NamedTuple):
    """What a charge of this cost came to; ``epoch`` is that of the store's own memory of refusals."""

    outcome: Outcome
    cost: int
    store: Store
    epoch: int
    at: float
    until: float


class Refusals:
    """By rule and ident, for a second at most; seconds on the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[Rule, str], _Refused] = {}

    def find(self, snapshot: Snapshot, least: Facts, store: Store) -> Decision | None:
        """The refusal of a publication that costs no less than this; None where the store is to be asked."""
        try:
            blocks = snapshot.blocks(least)
            if any(not block.shadow for block in blocks):
                return conclude(blocks)
            if not self._known or store.denials is None:
                return None
            charges = snapshot.match(least)
        except SynchronousOnlyOperation:  # nobody knows yet who publishes
            return None
        found = [one for charge in charges if (one := self._refused(charge, store))]
        if not found or any(map(_counts_every_call, charges)):
            return None
        store.meters.judge([charge for charge in charges if charge.rule.is_local])  # they measure attempts
        return conclude((*[one.outcome.later(self._clock() - one.at) for one in found], *blocks))

    def note(self, snapshot: Snapshot, facts: Facts, decision: Decision, store: Store, epoch: int) -> None:
        """Remember what was refused; ``epoch`` was read before asking."""
        if store.denials is None or decision.degraded or epoch != store.denials.epoch:
            return
        try:
            charges = snapshot.match(facts)
        except SynchronousOnlyOperation:
            return
        now = self._clock()
        for charge, outcome in zip(charges, decision.outcomes, strict=False):
            if (charge.rule.name, charge.ident) != (outcome.rule, outcome.ident):
                return  # it was refused before all were asked
            if outcome.allowed or outcome.shadow or charge.rule.is_local or _counts_every_call(charge):
                continue
            wait = LONGEST if outcome.retry_after is None else min(outcome.retry_after, LONGEST)
            if len(self._known) >= MOST:
                self._known.clear()
            refused = _Refused(outcome, charge.cost, store, epoch, now, now + wait)
            self._known[charge.rule, charge.ident] = refused

    def _refused(self, charge: Charge, store: Store) -> _Refused | None:
        key = charge.rule, charge.ident
        one = self._known.get(key)
        if one is None:
            return None
        if self._clock() >= one.until or one.store is not store or one.epoch != getattr(store.denials, "epoch", None):
            self._known.pop(key, None)
            return None
        rule = charge.rule  # what can never pass is refused in other words
        return one if one.cost <= charge.cost <= min(rule.plan.limit, rule.burst or rule.plan.limit) else None


def _counts_every_call(charge: Charge) -> bool:
    return charge.rule.count_denied or charge.rule.is_shadow


refusals = Refusals()
