"""Queue slots: the start times that a queue has reserved for calls, in the order of their reservation."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from django_throttle.core import Decision
from django_throttle.core.commands import Correct
from django_throttle.core.decision import Outcome, deferred_for
from django_throttle.core.rule import Rule
from django_throttle.local.shared_clock import TRUSTED, shared_clock
from django_throttle.rulebook.snapshot import wall_clock
from django_throttle.stores import get_store


class QueueSlot(NamedTuple):
    """When a call may run, in seconds since 1970, under which rule, and by which decision."""

    rule: str
    ident: str
    at: float
    decision: Decision | None = None

    def refund(self) -> tuple[Correct, ...]:
        """Return what gives the start time back."""
        return () if self.decision is None else self.decision.ledger.refund_pairs({(self.rule, self.ident)})

    @property
    def wait(self) -> float:
        """The seconds until then; 0 when it has passed."""
        return max(0.0, self.at - wall_clock())

    @property
    def start_time(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    @property
    def run_after(self) -> datetime:
        """The start time as django.tasks takes it: aware where USE_TZ is on."""
        return self.start_time if settings.USE_TZ else timezone.make_naive(self.start_time)


def queue_slot_of(decision: Decision, outcome: Outcome) -> QueueSlot | None:
    """The queue slot that this outcome of an allowed call has reserved; None where the call may run at once."""
    wait = outcome.delay or outcome.deferred_for
    if not (decision.allowed and wait) or outcome.shadow:
        return None
    told = decision.ledger.charged_at(outcome.rule, outcome.ident)
    return _queue_slot(outcome.rule, outcome.ident, told, wait, decision)


def _queue_slot(rule: str, ident: str, told: float, wait: float, decision: Decision) -> QueueSlot:
    """By the clock of the store, so that the start times of all processes are in the order in which they were reserved.

    ``told`` is what it said, in microseconds; what was decided without it is by the clock that all share.
    """
    now, at = wall_clock(), told / 1_000_000
    if abs(at - now) >= TRUSTED and told and _is_by_store(decision):
        shared_clock.learn(at)
        now = at
    return QueueSlot(rule, ident, (at if abs(at - now) < TRUSTED else now) + wait, decision)


def _is_by_store(decision: Decision) -> bool:
    """Return True where Redis has decided, by its own clock."""
    store = get_store()
    return store.is_remote and store.clock is None and not decision.degraded


def last_queue_slot(decision: Decision, rule: str | None = None) -> QueueSlot | None:
    """The latest of a call's queue slots, under all rules or one: a rule of several rates reserves one for each."""
    outcomes = [one for one in decision.outcomes if rule in (None, one.rule)]
    queue_slots = [queue_slot for outcome in outcomes if (queue_slot := queue_slot_of(decision, outcome))]
    return max(queue_slots, key=lambda queue_slot: queue_slot.at, default=None)


def queue_slot_under(decision: Decision, rule: str) -> QueueSlot | None:
    """The queue slot that an allowed call has reserved under this rule; None where the call may run at once.

    Read from the numbers of the store where they are all there is: making outcomes of them takes longer.
    """
    if decision.answered is None:
        return last_queue_slot(decision, rule)
    command, answers = decision.answered
    wait, ident = deferred_for(command, answers, rule)
    return _queue_slot(rule, ident, answers.at, wait, decision) if wait else None


def position(rule: Rule | None, wait: float) -> int | None:
    """How many queue slots a call that waits so many seconds is from its own; None where the rule is not known.

    No more than may wait: without Redis a process gives queue slots at its share of the rate.
    """
    if rule is None or not rule.all_rates:
        return None
    speed, most = _drains(rule)
    return max(1, min(ceil(wait * speed - 0.001), most))


@lru_cache(maxsize=1024)
def _drains(rule: Rule) -> tuple[float, int]:
    """Calls a second of the slowest rate, and how many may wait for it."""
    speed, slowest = min([(rate.limit / rate.window, at) for at, rate in enumerate(rule.all_rates)])
    return speed, rule.parts[slowest].params.limit - 1
