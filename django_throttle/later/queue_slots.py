"""Queue slots: start times that a queue has reserved for calls, in the order of their reservation."""

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
from django_throttle.local.shared_clock import MAX_TRUSTED_SECONDS, shared_clock
from django_throttle.stores import get_store


class QueueSlot(NamedTuple):
    """Reserved start time of a call."""

    rule: str
    ident: str
    at: float  #: seconds since 1970
    decision: Decision | None = None  #: decision that reserved it

    def refund(self) -> tuple[Correct, ...]:
        """Return the commands that release the queue slot."""
        return () if self.decision is None else self.decision.ledger.refund_pairs({(self.rule, self.ident)})

    @property
    def wait(self) -> float:
        """Seconds until the start time, or 0 if it has passed."""
        return max(0.0, self.at - shared_clock.now())

    @property
    def start_time(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    @property
    def run_after(self) -> datetime:
        """Start time for django.tasks, aware if USE_TZ is on."""
        return self.start_time if settings.USE_TZ else timezone.make_naive(self.start_time)


def queue_slot_of(decision: Decision, outcome: Outcome) -> QueueSlot | None:
    """Return the queue slot that this outcome of an allowed call has reserved, or None if the call may run at once."""
    wait = outcome.delay or outcome.deferred_for
    if not (decision.allowed and wait) or outcome.shadow:
        return None
    charged_us = decision.ledger.charged_at(outcome.rule, outcome.ident)
    return _queue_slot(outcome.rule, outcome.ident, charged_us, wait, decision)


def _queue_slot(rule: str, ident: str, charged_us: float, wait: float, decision: Decision) -> QueueSlot:
    """Return a queue slot by the store's clock, so that start times of all processes are in the order of reservation.

    ``charged_us`` is the time of the charge on the store's clock, in microseconds, or 0 to use the shared clock.
    """
    now, at = shared_clock.now(), charged_us / 1_000_000
    if charged_us and abs(at - now) >= MAX_TRUSTED_SECONDS and not decision.degraded:
        store = get_store()
        if store.is_remote and store.clock is None:  # Redis has decided, by its own clock
            shared_clock.learn(at)
            now = at
    return QueueSlot(rule, ident, (at if abs(at - now) < MAX_TRUSTED_SECONDS else now) + wait, decision)


def last_queue_slot(decision: Decision, rule: str | None = None) -> QueueSlot | None:
    """Return the latest queue slot of a call, under all rules or one, or None. Each rate of a rule reserves a slot."""
    outcomes = [outcome for outcome in decision.outcomes if rule in (None, outcome.rule)]
    queue_slots = [queue_slot for outcome in outcomes if (queue_slot := queue_slot_of(decision, outcome))]
    return max(queue_slots, key=lambda queue_slot: queue_slot.at, default=None)


def queue_slot_under(decision: Decision, rule: str) -> QueueSlot | None:
    """Return the queue slot that an allowed call has reserved under this rule, or None if the call may run at once.

    It is read from the store's numbers if possible, because making outcomes from them takes longer.
    """
    if decision.answered is None:
        return last_queue_slot(decision, rule)
    command, answers = decision.answered
    wait, ident = deferred_for(command, answers, rule)
    return _queue_slot(rule, ident, answers.at, wait, decision) if wait else None


def position(rule: Rule | None, wait: float) -> int | None:
    """Return the position of a call in the queue that waits so many seconds, or None if the rule is unknown.

    The position is at most the length of the queue. It could exceed it without Redis, when a process has only its share
    of the rate.
    """
    if rule is None or not rule.all_rates:
        return None
    speed, max_waiting = _drain(rule)
    return max(1, min(ceil(wait * speed - 0.001), max_waiting))


@lru_cache(maxsize=1024)
def _drain(rule: Rule) -> tuple[float, int]:
    """Return the calls per second of the slowest rate, and the number of calls that may wait for it."""
    speed, slowest = min([(rate.limit / rate.window, index) for index, rate in enumerate(rule.all_rates)])
    return speed, rule.parts[slowest].params.limit - 1
