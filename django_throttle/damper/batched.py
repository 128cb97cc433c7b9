"""Batched quotas: charges are noted here and sent to the store every few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Decide
from django_throttle.core.decide import crossings, outcomes_of
from django_throttle.core.decision import Crossing, Outcome
from django_throttle.core.rule import Rule
from django_throttle.exceptions import Cause, StoreError
from django_throttle.store_time import micros

MOST: Final = 10_000
IDLE: Final = 30.0  # seconds after which a quota with nothing to charge is forgotten


class BatchedQuota:
    """What one process knows of an ident's quota, and has still to charge; times are seconds on our clock."""

    __slots__ = ("_charged_as", "crossed", "ident", "uncharged", "resets_at", "rule", "seen_at", "used")

    def __init__(self, rule: Rule, ident: str, now: float) -> None:
        self.ident, self.seen_at = ident, now
        self.uncharged = self.used = 0  # ``used``: by the store's last answer, and what it may have charged since
        self.resets_at = now
        self.crossed: tuple[Crossing, ...] = ()
        self.adopt(rule)

    def adopt(self, rule: Rule) -> None:
        """Go by this edition of the rule."""
        self.rule = rule
        # What has passed is charged, whatever is left.
        self._charged_as = replace(rule, action="shadow", count_denied=True, batched=False)

    def look(self, cost: int, now: float) -> Answer:
        """The answer of the store, as far as this process knows."""
        limit, left = self.rule.plan.limit, min(self.resets_at - now, self.rule.window or 0.0)
        used = self.uncharged + (self.used if left > 0 else 0)
        remaining, reset = max(0, limit - used), micros(max(0.0, left))
        if cost <= remaining:
            return Answer(0, remaining, reset)
        return Answer(NEVER if cost > limit else max(1, reset), remaining, reset)

    def due(self, *, in_doubt: bool) -> Charge | None:
        """The charge to send. Of cost 0, only to ask, where the last one may be lost or the quota is used up."""
        if not self.uncharged and self.used < self.rule.plan.limit:
            return None
        return Charge(self._charged_as, self.ident, 0 if in_doubt else self.uncharged)

    def lost(self, charge: Charge, now: float) -> None:
        """The store may have charged it or not: it is not sent again, and counts as used in this process."""
        self.uncharged -= charge.cost
        if now >= self.resets_at:
            self.used, self.resets_at = 0, now + (self.rule.window or 0.0)
        self.used += charge.cost

    def charged(self, charge: Charge, answer: Answer, now: float) -> None:
        """The store has charged it: adopt its answer."""
        self.uncharged -= charge.cost
        self.used = self.rule.plan.limit - answer.remaining
        self.resets_at = now + answer.reset / 1_000_000
        paid, said = charge._replace(rule=self.rule), answer._replace(retry=0)
        self.crossed += crossings((paid,), (said,), outcomes_of(Decide((paid,)), (said,)))


class Due(NamedTuple):
    """A charge to send, and the quota that it is from."""

    quota: BatchedQuota
    charge: Charge


class BatchedQuotas:
    """The batched quotas of one process, at most MOST; the caller holds a lock."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], BatchedQuota] = {}
        self._in_doubt = False

    def __len__(self) -> int:
        return len(self._quotas)

    def look(self, charge: Charge, now: float) -> Outcome:
        """Whether the call passes, as far as this process knows."""
        quota = self._find(charge, now)
        (outcome,) = outcomes_of(Decide((charge,), commit=False), (quota.look(charge.cost, now),))
        return outcome

    def add(self, charge: Charge, now: float) -> tuple[Crossing, ...]:
        """Add a call that has passed; returns the warnings that are due since the last call."""
        quota = self._find(charge, now)
        quota.uncharged += charge.cost
        crossed, quota.crossed = quota.crossed, ()
        return crossed

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again: the budget was reset."""
        self._quotas.pop((rule_id, ident), None)

    def collect(self, now: float) -> list[Due]:
        """The charges to send now."""
        found: list[Due] = []
        for key, quota in list(self._quotas.items()):
            charge = quota.due(in_doubt=self._in_doubt)
            if charge is not None:
                found.append(Due(quota, charge))
            elif now - quota.seen_at > IDLE:
                del self._quotas[key]
        return found

    def take(self, due: Sequence[Due], answers: Sequence[Answer | BaseException], now: float) -> None:
        """Adopt the answers of the store. A charge that may have arrived is not sent again: nothing is charged twice.

        A store that answers that it cannot serve has charged nothing, so its charge is sent again.
        """
        self._in_doubt = False
        for (quota, charge), answer in zip(due, answers, strict=True):
            if isinstance(answer, Answer):
                quota.charged(charge, answer, now)
            elif not (isinstance(answer, StoreError) and answer.cause is Cause.SERVER_STATE):
                quota.lost(charge, now)
                self._in_doubt = True  # so that no more is lost, ask before charging again

    def _find(self, charge: Charge, now: float) -> BatchedQuota:
        key = charge.rule.id, charge.ident
        quota = self._quotas.get(key)
        if quota is None:
            if len(self._quotas) >= MOST:
                idle = (key for key, known in self._quotas.items() if not known.uncharged)
                self._quotas.pop(next(idle, None) or next(iter(self._quotas)))
            quota = self._quotas[key] = BatchedQuota(charge.rule, charge.ident, now)
        elif quota.rule is not charge.rule:
            quota.adopt(charge.rule)
        quota.seen_at = now
        return quota
