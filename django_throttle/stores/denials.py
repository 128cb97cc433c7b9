"""Remembered refusals: what was refused a moment ago is refused again without asking Redis.

An attack then costs Redis one call a second for each identity and process, and a budget that is given back
elsewhere shows here within a second. A client that is refused for want of a slot costs it ten calls a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django_throttle.core.commands import Charge, Charges
from django_throttle.core.decision import Decision, Outcome
from django_throttle.core.rule import Rule
from django_throttle.lifecycle import in_child

K = TypeVar("K")
T = TypeVar("T")

LONGEST: Final = 1.0
MOST: Final = 10_000
# A slot may come back at any moment: only from so many refusals on, none a second after the last, is one remembered.
MANY_REFUSALS: Final = 10
SLOT_SECONDS: Final = 0.1
PUBLISH: Final = "publish"


D = TypeVar("D", Decision, Outcome)


@dataclass(slots=True)
class Denial(Generic[D]):
    """A refusal of these costs, when it was decided, and until when it is said again.

    So do processes remember refusals, and sockets those of their own rules.
    """

    decision: D
    at: float
    until: float
    costs: tuple[int, ...] = ()

    def again(self, costs: tuple[int, ...], now: float) -> D | None:
        """The decision for what costs no less, with the time that has passed taken off; None where it says nothing."""
        if now >= self.until or any(map(int.__lt__, costs, self.costs)):
            return None
        return self.decision.later(now - self.at)


class _Streak(NamedTuple):
    """Refusals by slots, each less than a second after the one before."""

    refusals: int
    last: float


class Denials:
    """The latest refusals, at most 10,000, by what was asked for; times are seconds on the monotonic clock.

    A rule is part of what is asked for, so an edited one meets none of the refusals of the old.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.known: dict[tuple[Any, ...], Denial[Decision]] = {}  # by the key of the charges
        self._full: dict[tuple[Any, ...], _Streak] = {}
        self._publish_refusals: dict[tuple[Rule, str], Denial[Outcome]] = {}  # of publications, whose costs differ
        self.epoch = 0  # budgets given back so far
        self._lock = Lock()
        in_child(self, type(self)._renew)

    def find(self, charges: Charges) -> Decision | None:
        """The decision, with the time that has passed taken off, or None when Redis is to be asked."""
        denial = self.known.get(charges.key)
        if denial is None:
            return None
        now = self._clock()
        if now >= denial.until:
            with self._lock:
                self.known.pop(charges.key, None)
            return None
        return denial.decision.later(now - denial.at)

    def note(self, charges: Charges, decision: Decision, epoch: int) -> None:
        """Remember a refusal by rates that charge nothing for it; anything else is asked for again each time.

        What only slots refuse is remembered for a tenth of a second, once it has been refused ten times in a row.
        ``epoch`` was read before asking: what a budget that was given back meanwhile has met is not remembered.
        """
        each = tuple(charges)
        if decision.allowed or decision.degraded or any(map(_counts_every_call, each)):
            return
        now, wait, by_slots = self._clock(), _remembered(decision.retry_after), False
        if charges.rules.has_leases:
            rates = [one for one in decision.outcomes if one.window and not (one.allowed or one.shadow)]
            wait, by_slots = max([_remembered(one.retry_after) for one in rates], default=0.0), not rates
        with self._lock:
            if epoch != self.epoch:
                return
            if by_slots:
                wait = self._slots_remembered(charges, now)
            if wait:
                _keep(self.known, charges.key, Denial(decision, now, now + wait))
            for (rule, ident, cost), outcome in zip(each, decision.outcomes, strict=False):
                if PUBLISH in rule.events and not (outcome.allowed or outcome.shadow):
                    until = now + _remembered(outcome.retry_after)
                    _keep(self._publish_refusals, (rule, ident), Denial(outcome, now, until, (cost,)))

    @property
    def knows_publications(self) -> bool:
        """Whether ``refused`` may find anything."""
        return bool(self._publish_refusals)

    def refused(self, charges: Sequence[Charge]) -> tuple[Outcome, ...]:
        """The outcomes of rules that refused a publication of no higher cost a moment ago."""
        if any(map(_counts_every_call, charges)):
            return ()
        now, found = self._clock(), []
        for rule, ident, cost in charges:
            one = self._publish_refusals.get((rule, ident))
            most = min(rule.plan.limit, rule.burst or rule.plan.limit)  # what can never pass is refused in other words
            if one and cost <= most and (outcome := one.again((cost,), now)):
                found.append(outcome)
        return tuple(found)

    def _slots_remembered(self, charges: Charges, now: float) -> float:
        """For how long a refusal by slots is remembered: not at all where one of them makes room."""
        if any(charge.rule.at_limit != "reject" for charge in charges):
            return 0.0
        before = self._full.pop(charges.key, None)
        count = before.refusals + 1 if before is not None and now - before.last < LONGEST else 1
        _keep(self._full, charges.key, _Streak(count, now))
        return SLOT_SECONDS if count >= MANY_REFUSALS else 0.0

    def _renew(self) -> None:
        self._lock = Lock()

    def clear(self) -> None:
        """Forget all of it: a budget was given back."""
        with self._lock:
            self.epoch += 1
            self.known.clear()
            self._full.clear()
            self._publish_refusals.clear()


class NoDenials(Denials):
    """Remembers nothing: for a store that is as cheap to ask."""

    def find(self, charges: Charges) -> Decision | None:
        return None

    def note(self, charges: Charges, decision: Decision, epoch: int) -> None:
        return None


def _keep(known: dict[K, T], key: K, one: T) -> None:
    known.pop(key, None)  # so that the order is that of the last refusal
    while len(known) >= MOST:
        known.pop(next(iter(known)), None)
    known[key] = one


def _remembered(retry_after: float | None) -> float:
    """For how long a refusal by a rate is remembered, in seconds."""
    return LONGEST if retry_after is None else min(retry_after, LONGEST)


def _counts_every_call(charge: Charge) -> bool:
    rule = charge.rule
    return rule.count_denied or rule.action == "shadow"
