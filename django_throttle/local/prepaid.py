"""Prepaid budgets of a process: the units that it holds, has ordered and refunds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.core.commands import Answer, Charge, Correct, Decide, LedgerEntry
from django_throttle.core.decision import Decision
from django_throttle.core.prepaid import PrepaidBudget, PrepaidCall, PrepaidOrder, PrepaidUnits
from django_throttle.core.rule import Rule
from django_throttle.exceptions import StoreError
from django_throttle.runtime import in_child

Key = tuple[str, str]  # rule id, ident
MAX_BUDGETS: Final = 10_000
MAX_BATCH_REFUNDS: Final = 500
SWEEP_SECONDS: Final = 0.5  # between sweeps for units to refund
MAX_SWEPT_BUDGETS: Final = 100  # in a row, so that no decision waits for the sweep of all


class PendingOrder(NamedTuple):
    """An order whose answers are awaited. The result of ``done`` is the store's error; None if the store answered."""

    order: PrepaidOrder
    done: Future[StoreError | None]


class PrepaidBudgets:
    """The prepaid budgets of a process, at most MAX_BUDGETS. Thread-safe, and empty after a fork.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.patience = 0.1  #: seconds for which a call waits for another call's order
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._budgets: dict[Key, PrepaidBudget] = {}
        self._pending: dict[Key, PendingOrder] = {}
        self._refunds: list[LedgerEntry] = []

    def __len__(self) -> int:
        return len(self._budgets)

    def spend(self, rule: Rule, ident: str, cost: int) -> Decision | None:
        """Decide a call with this single charge by the units held. Return None if these are too few."""
        with self._lock:
            budget = self._budgets.get((rule.id, ident))
            return budget.spend(cost, self.clock()) if budget is not None and budget.rule is rule else None

    def spend_all(self, charges: Sequence[Charge]) -> bool:
        """Take the units of these charges. Return False, and take nothing, unless single orders suffice for each."""
        rows = []
        with self._lock:
            now = self.clock()
            for rule, ident, cost in charges:
                budget = self._budgets.get((rule.id, ident))
                if budget is None or budget.rule is not rule or (units := budget.units_for(cost, now)) is None:
                    return False
                rows.append((budget, units, cost))
            for budget, units, cost in rows:
                units.unspent -= cost
                budget.demand += cost
            return True

    def held(self, charge: Charge) -> int:
        """Return the number of units that are held for a charge."""
        with self._lock:
            budget = self._budgets.get((charge.rule.id, charge.ident))
            return 0 if budget is None else budget.held(self.clock())

    def take_or_order(self, call: PrepaidCall) -> PendingOrder | None:
        """Take the units held for a call. Return None if the call has all its units, or is refused.

        Otherwise return an order: a new one of this call, to be executed, or that of another call, to wait for.
        """
        with self._lock:
            now = self.clock()
            missing = call.take([self._find(charge, now) for charge in call.charges], now)
            for units in missing:
                if (pending := self._pending.get(_key(units.budget))) is not None:
                    return pending
            if not missing:
                return None
            pending = PendingOrder(PrepaidOrder(call, missing, now), Future())
            self._pending.update(dict.fromkeys([_key(units.budget) for units in missing], pending))
            return pending

    def settle_order(self, order: PrepaidOrder, command: Decide, answers: Sequence[Answer], sent_at: float) -> None:
        """Add the units of an order that the store has answered. Refund those of budgets dropped meanwhile."""
        with self._lock:
            for units in order.settle(command, answers, sent_at):
                rule, ident, _ = units.entry.charge
                budget = self._budgets.get((rule.id, ident))
                if budget is None or not any(missing.budget is budget for missing in order.missing):
                    self._refund([units])

    def end(self, pending: PendingOrder, error: StoreError | None) -> None:
        """End an order, and wake the calls that wait for it."""
        with self._lock:
            for units in pending.order.missing:
                self._pending.pop(_key(units.budget), None)
                if error is not None:
                    units.budget.note_failure(self.clock())
        pending.done.set_result(error)

    def release(self, call: PrepaidCall) -> None:
        """Return the units of a call that was refused or has ended, for other calls or for a refund."""
        with self._lock:
            call.has_ended = True
            for units, cost in [spent for taken in call.taken.values() for spent in taken]:
                units.unspent += cost
                if units.is_over:
                    self._refund([units])
            for place in call.taken:
                rule, ident, _ = call.charges[place]
                if (budget := self._budgets.get((rule.id, ident))) is not None:
                    budget.clear_paying()
            call.taken.clear()

    def forget(self, was_reset: Callable[[PrepaidBudget], bool]) -> None:
        """Drop the budgets that were reset, with their units, which the reset has refunded."""
        with self._lock:
            for key in [key for key, budget in self._budgets.items() if was_reset(budget)]:
                del self._budgets[key]

    def sweep(self, *, everything: bool = False) -> list[Correct]:
        """Return the commands that refund the expired units, or with ``everything`` all units."""
        with self._lock:
            budgets = list(self._budgets.items())
        for at in range(0, len(budgets), MAX_SWEPT_BUDGETS):
            with self._lock:
                now = self.clock()
                for key, budget in budgets[at : at + MAX_SWEPT_BUDGETS]:
                    if self._budgets.get(key) is not budget:  # it was reset meanwhile, so nothing is to be refunded
                        continue
                    if expired := budget.remove_expired(inf if everything else now):
                        budget.note_command(now)
                        self._refund(expired)
                    if budget.is_idle(now) and key not in self._pending:
                        del self._budgets[key]
        with self._lock:
            refunds, self._refunds = self._refunds, []
        return [
            Correct(tuple(refunds[at : at + MAX_BATCH_REFUNDS])) for at in range(0, len(refunds), MAX_BATCH_REFUNDS)
        ]

    def _refund(self, batches: Sequence[PrepaidUnits]) -> None:
        for units in batches:
            units.is_over = True
            self._refunds.append(units.part(units.unspent))
            units.unspent = 0

    def _find(self, charge: Charge, now: float) -> PrepaidBudget:
        key = charge.rule.id, charge.ident
        budget = self._budgets.get(key)
        if budget is None or (budget.rule is not charge.rule and budget.rule != charge.rule):
            if budget is not None:  # units under an earlier version of the rule
                self._refund(budget.remove_expired())
            elif len(self._budgets) >= MAX_BUDGETS:
                self._refund(self._budgets.pop(next(iter(self._budgets))).remove_expired())
            budget = self._budgets[key] = PrepaidBudget(charge.rule, charge.ident, now)
        budget.rule = charge.rule
        return budget


def _key(budget: PrepaidBudget) -> Key:
    return budget.rule.id, budget.ident
