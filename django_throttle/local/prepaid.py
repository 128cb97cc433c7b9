"""The prepaid budgets that a process holds: what it has bought ahead, is buying, and gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.core.commands import Answer, Charge, Correct, Decide, Entry
from django_throttle.core.decision import Decision
from django_throttle.core.prepaid import Buying, Claim, PrepaidBudget, Purchase
from django_throttle.core.rule import Rule
from django_throttle.exceptions import StoreError
from django_throttle.runtime import in_child

Key = tuple[str, str]  # rule id, ident
MOST: Final = 10_000
BATCH: Final = 500  # refunds in one round trip
SWEEP_SECONDS: Final = 0.5  # between two looks for what goes back
TOGETHER: Final = 100  # budgets that are looked at


class Pending(NamedTuple):
    """A purchase under way; ``done`` has as its result why the store failed, None where it has answered."""

    buying: Buying
    done: Future[StoreError | None]


class PrepaidBudgets:
    """The prepaid budgets of one process, at most MOST; safe to use from any thread, and empty after a fork.

    ``clock`` is monotonic, in seconds. A call waits for no longer than ``patience`` seconds for what another one buys.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.patience = clock, 0.1
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._known: dict[Key, PrepaidBudget] = {}
        self._pending: dict[Key, Pending] = {}
        self._back: list[Entry] = []  # to be refunded

    def __len__(self) -> int:
        return len(self._known)

    def spend(self, rule: Rule, ident: str, cost: int) -> Decision | None:
        """The decision of a call by this charge alone, where enough is held; it asks nobody."""
        with self._lock:
            budget = self._known.get((rule.id, ident))
            return budget.spend(cost, self.clock()) if budget is not None and budget.rule is rule else None

    def spend_all(self, charges: Sequence[Charge]) -> bool:
        """Take what a call is charged; False, and nothing is taken, where it takes another look."""
        taking = []
        with self._lock:
            now = self.clock()
            for rule, ident, cost in charges:
                budget = self._known.get((rule.id, ident))
                if budget is None or budget.rule is not rule or (paying := budget.paying(cost, now)) is None:
                    return False
                taking.append((budget, paying, cost))
            for budget, paying, cost in taking:
                paying.left -= cost
                budget.demand += cost
            return True

    def held(self, charge: Charge) -> int:
        with self._lock:
            budget = self._known.get((charge.rule.id, charge.ident))
            return 0 if budget is None else budget.held(self.clock())

    def look(self, claim: Claim) -> Pending | None:
        """Take what is held. None when the claim is complete or refused; else the purchase to make or to wait for."""
        with self._lock:
            now = self.clock()
            lacking = claim.take([self._find(charge, now) for charge in claim.charges], now)
            for one in lacking:
                if (pending := self._pending.get(_key(one.budget))) is not None:
                    return pending
            if not lacking:
                return None
            pending = Pending(Buying(claim, lacking, now), Future())
            self._pending.update(dict.fromkeys([_key(one.budget) for one in lacking], pending))
            return pending

    def bought(self, buying: Buying, command: Decide, answers: Sequence[Answer], sent_at: float) -> None:
        """The store has answered this command. What was bought of a budget that is forgotten meanwhile goes back."""
        with self._lock:
            for purchase in buying.settle(command, answers, sent_at):
                rule, ident, _ = purchase.entry.charge
                budget = self._known.get((rule.id, ident))
                if budget is None or not any(one.budget is budget for one in buying.wanted):
                    self._give_back([purchase])

    def end(self, pending: Pending, error: StoreError | None) -> None:
        """The purchase is over: whoever waits for it looks again."""
        with self._lock:
            for one in pending.buying.wanted:
                if self._pending.get(_key(one.budget)) is pending:
                    del self._pending[_key(one.budget)]
                if error is not None:
                    one.budget.note_failure(self.clock())
        if not pending.done.done():
            pending.done.set_result(error)

    def release(self, claim: Claim) -> None:
        """The call was refused, or has ended: what it took is for others, or goes back."""
        with self._lock:
            claim.has_ended = True
            for one in [one for taken in claim.taken.values() for one in taken]:
                one.purchase.left += one.cost
                if one.purchase.is_over:
                    self._give_back([one.purchase])
            for place in claim.taken:
                rule, ident, _ = claim.charges[place]
                if (budget := self._known.get((rule.id, ident))) is not None:
                    budget.look_again()
            claim.taken.clear()

    def forget(self, is_meant: Callable[[PrepaidBudget], bool]) -> None:
        """These budgets were reset: nobody is charged for what was bought of them before."""
        with self._lock:
            for key in [key for key, budget in self._known.items() if is_meant(budget)]:
                del self._known[key]

    def sweep(self, *, everything: bool = False) -> list[Correct]:
        """What goes back: what may be spent no longer, or all that is held."""
        with self._lock:
            budgets = list(self._known.items())
        for at in range(0, len(budgets), TOGETHER):
            with self._lock:  # for a few by themselves, so that no decision waits for all of them
                now = self.clock()
                for key, budget in budgets[at : at + TOGETHER]:
                    if self._known.get(key) is not budget:  # it was reset meanwhile: nothing of it goes back
                        continue
                    if gone := budget.leftover(inf if everything else now):
                        budget.note_command(now)
                        self._give_back(gone)
                    if budget.is_idle(now) and key not in self._pending:
                        del self._known[key]
        with self._lock:
            back, self._back = self._back, []
        return [Correct(tuple(back[at : at + BATCH])) for at in range(0, len(back), BATCH)]

    def _give_back(self, purchases: Sequence[Purchase]) -> None:
        for one in purchases:
            one.is_over = True
            self._back.append(one.part(one.left))
            one.left = 0

    def _find(self, charge: Charge, now: float) -> PrepaidBudget:
        key = charge.rule.id, charge.ident
        budget = self._known.get(key)
        if budget is None or (budget.rule is not charge.rule and budget.rule != charge.rule):
            if budget is not None:  # what was bought under another edition of the rule
                self._give_back(budget.leftover())
            elif len(self._known) >= MOST:
                self._give_back(self._known.pop(next(iter(self._known))).leftover())
            budget = self._known[key] = PrepaidBudget(charge.rule, charge.ident, now)
        budget.rule = charge.rule
        return budget


def _key(budget: PrepaidBudget) -> Key:
    return budget.rule.id, budget.ident
