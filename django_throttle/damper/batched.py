"""Batched quotas: charges are noted here and sent to the store every few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Decide
from django_throttle.core.decision import Crossing, Outcome
from django_throttle.core.flow import crossings, outcomes_of
from django_throttle.core.rule import Rule
from django_throttle.exceptions import Cause, StoreError
from django_throttle.store_time import micros

MOST: Final = 10_000
IDLE: Final = 30.0  # seconds after which a tab on which nothing is owed is forgotten


class Tab:
    """What one process knows of a quota, and owes; times are seconds on our clock."""

    __slots__ = ("_bill", "crossed", "ident", "owed", "resets_at", "rule", "seen_at", "used")

    def __init__(self, rule: Rule, ident: str, now: float) -> None:
        self.ident, self.seen_at = ident, now
        self.owed = self.used = 0  # ``used``: what the store has said, and what it may have charged since
        self.resets_at = now
        self.crossed: tuple[Crossing, ...] = ()
        self.adopt(rule)

    def adopt(self, rule: Rule) -> None:
        """Go by this edition of the rule."""
        self.rule = rule
        # What has passed has passed: it is charged, whatever is left.
        self._bill = replace(rule, action="shadow", count_denied=True, batched=False)

    def look(self, cost: int, now: float) -> Answer:
        """What the store would say now, as far as this process knows."""
        limit, left = self.rule.plan.limit, min(self.resets_at - now, self.rule.window or 0.0)
        used = self.owed + (self.used if left > 0 else 0)
        remaining, reset = max(0, limit - used), micros(max(0.0, left))
        if cost <= remaining:
            return Answer(0, remaining, reset)
        return Answer(NEVER if cost > limit else max(1, reset), remaining, reset)

    def bill(self, *, doubtful: bool) -> Charge | None:
        """What to charge: all that is owed; nothing, only to ask, when the store is in doubt or the quota used up."""
        if not self.owed and self.used < self.rule.plan.limit:
            return None
        return Charge(self._bill, self.ident, 0 if doubtful else self.owed)

    def doubt(self, charge: Charge, now: float) -> None:
        """Nobody knows whether it was charged: that is not done again, but it has passed, so it counts here."""
        self.owed -= charge.cost
        if now >= self.resets_at:
            self.used, self.resets_at = 0, now + (self.rule.window or 0.0)
        self.used += charge.cost

    def pay(self, charge: Charge, answer: Answer, now: float) -> None:
        """The store has charged it and says how things stand."""
        self.owed -= charge.cost
        self.used = self.rule.plan.limit - answer.remaining
        self.resets_at = now + answer.reset / 1_000_000
        paid, said = charge._replace(rule=self.rule), answer._replace(retry=0)
        self.crossed += crossings((paid,), (said,), outcomes_of(Decide((paid,)), (said,)))


class Billed(NamedTuple):
    """A charge on its way, and the tab that it is from."""

    tab: Tab
    charge: Charge


class Tabs:
    """The tabs of one process, at most so many; whoever calls holds a lock."""

    def __init__(self) -> None:
        self._tabs: dict[tuple[str, str], Tab] = {}
        self._doubtful = False

    def __len__(self) -> int:
        return len(self._tabs)

    def look(self, charge: Charge, now: float) -> Outcome:
        """Whether it passes, as far as this process knows."""
        tab = self._find(charge, now)
        (outcome,) = outcomes_of(Decide((charge,), commit=False), (tab.look(charge.cost, now),))
        return outcome

    def owe(self, charge: Charge, now: float) -> tuple[Crossing, ...]:
        """It has passed; returns what is to be told of since the last call."""
        tab = self._find(charge, now)
        tab.owed += charge.cost
        crossed, tab.crossed = tab.crossed, ()
        return crossed

    def forget(self, rule_id: str, ident: str) -> None:
        """The quota was given back."""
        self._tabs.pop((rule_id, ident), None)

    def collect(self, now: float) -> list[Billed]:
        """What is to be charged now."""
        found: list[Billed] = []
        for key, tab in list(self._tabs.items()):
            charge = tab.bill(doubtful=self._doubtful)
            if charge is not None:
                found.append(Billed(tab, charge))
            elif now - tab.seen_at > IDLE:
                del self._tabs[key]
        return found

    def take(self, billed: Sequence[Billed], answers: Sequence[Answer | BaseException], now: float) -> None:
        """What the store has said. Whatever a failed call has charged is not charged again: never twice.

        A store that answers that it cannot serve has charged nothing, so that is owed still.
        """
        self._doubtful = False
        for (tab, charge), answer in zip(billed, answers, strict=True):
            if isinstance(answer, Answer):
                tab.pay(charge, answer, now)
            elif not (isinstance(answer, StoreError) and answer.cause is Cause.SERVER_STATE):
                tab.doubt(charge, now)
                self._doubtful = True  # so that no more is lost, ask before charging again

    def _find(self, charge: Charge, now: float) -> Tab:
        key = charge.rule.id, charge.ident
        tab = self._tabs.get(key)
        if tab is None:
            if len(self._tabs) >= MOST:
                self._tabs.pop(next((key for key, tab in self._tabs.items() if not tab.owed), next(iter(self._tabs))))
            tab = self._tabs[key] = Tab(charge.rule, charge.ident, now)
        elif tab.rule is not charge.rule:
            tab.adopt(charge.rule)
        tab.seen_at = now
        return tab
