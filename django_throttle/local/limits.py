"""Local limits: the dampers and prepaid budgets of a process, and the reports of dampers to the store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, islice
from operator import itemgetter
from threading import Lock
from typing import Final, Protocol

from django_throttle.core.commands import Charge
from django_throttle.core.decision import Decision, Outcome
from django_throttle.exceptions import StoreError
from django_throttle.local.damper_aggregate import DamperReport, Reply
from django_throttle.local.damper_meter import NEXT_FACTOR, MeterCache, MeterReport
from django_throttle.local.prepaid import PrepaidBudgets
from django_throttle.runtime import in_child

MAX_METERS: Final = 10_000
MAX_BATCH_REPORTS: Final = 500  # in a round trip


class LocalLimits:
    """Decides the charges of dampers. Thread-safe; after a fork it is empty and has a new name.

    ``clock`` is monotonic, in seconds, and ``chance`` returns random numbers from 0 to less than 1. The agent sends
    reports every ``interval`` seconds. With ``on_due``, the next decision after that calls it instead, which is for
    stores that need no round trip.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        interval: float = 2.0,
        max_meters: int = MAX_METERS,
        on_due: Callable[[], object] | None = None,
    ) -> None:
        self.clock, self.chance, self.interval, self.max_meters = clock, chance, interval, max_meters
        self.processes = 1  #: number of live processes
        self.prepaid = PrepaidBudgets()
        self._on_due = on_due
        self._renew()
        in_child(self, type(self)._renew)

    def decide_damper(self, charge: Charge, *, commit: bool = True) -> Decision:
        """Count an attempt under a damper and decide it."""
        now = self.clock()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            meter = self.cache.find(charge, now)
            wait = meter.attempt(now, charge.cost if commit else 0, self.chance() if meter.factor else 1.0)
            return meter.refusal_after(self._until_then(wait, now)) if wait else meter.passing_decision

    def decide_all(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]:
        """Count attempts and decide each. They share a random number, so that the strictest rule sets the share."""
        now, chance = self.clock(), self.chance()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            outcomes: list[Outcome] = []
            for charge in charges:
                meter = self.cache.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                outcomes += (
                    meter.refusal_after(self._until_then(wait, now)).outcomes if wait else (meter.passing_outcome,)
                )
            return tuple(outcomes)

    def suppressed(self, most: int) -> list[tuple[str, str, float]]:
        """Return up to ``most`` suppressed idents: rule, ident and suppression factor, the highest first."""
        with self._lock:
            meters = list(self.cache.meters.values())
        rows = [(meter.rule.name, meter.ident, meter.factor) for meter in meters if meter.factor]
        return nlargest(most, rows, key=itemgetter(2))

    def forget(self, rule_id: str, ident: str) -> None:
        """Forget the counts and prepaid units of a budget that was reset."""
        with self._lock:
            self.cache.meters.pop((rule_id, ident), None)
        self.prepaid.forget(lambda budget: (budget.rule.id, budget.ident) == (rule_id, ident))

    def collect(self) -> Iterator[list[MeterReport]]:
        """Yield the reports to send in batches, made one by one, because all together take too much memory."""
        reports = self._reports()
        while batch := list(islice(reports, MAX_BATCH_REPORTS)):
            yield batch

    def _reports(self) -> Iterator[MeterReport]:
        with self._lock:
            removed, keys = self.cache.reports_of_removed(self.clock()), list(self.cache.meters)
        yield from removed
        for key in keys:
            with self._lock:  # for each meter, so that no decision waits for all of them
                report = self.cache.report(key, self.clock())
            if report is not None:
                yield report

    def take(self, sent: Sequence[MeterReport], replies: Sequence[Reply | BaseException], sent_at: float) -> None:
        """Process the replies to reports sent at ``sent_at``. An error in place of a reply marks a failed report."""
        now = self.clock()
        for (meter, report), reply in zip(sent, replies, strict=True):
            with self._lock:
                meter.processes = self.processes
                if isinstance(reply, BaseException):
                    meter.fail(now, self.interval)
                    continue
                meter.take(report, reply, sent_at, now)
                self.cache.time = meter.time

    def fail(self, sent: Sequence[MeterReport]) -> None:
        self.take(sent, [TimeoutError()] * len(sent), 0.0)

    def _renew(self) -> None:
        self._lock = Lock()
        self.cache = MeterCache(self.max_meters)
        self.due_at = self.clock() + self.interval

    def _flush_when_due(self, now: float) -> None:
        """Send reports if they are due, or the clock was set back."""
        if self._on_due is not None and not self.due_at - 2 * self.interval <= now < self.due_at:
            self.due_at = now + self.interval
            self._on_due()

    def _until_then(self, wait: float, now: float) -> float:
        """Return the seconds until a refused call may be repeated; ``wait`` may be NEXT_FACTOR."""
        if wait != NEXT_FACTOR:
            return wait
        return self.due_at - now if self.due_at > now else self.interval


MAX_JITTER: Final = 0.1  # share by which an interval is extended


class Aggregator(Protocol):
    """Receives reports."""

    def damp(self, reports: Sequence[DamperReport]) -> Sequence[Reply | BaseException]:
        """Return the replies, or errors, to reports sent in a round trip. Raise StoreError if the store fails."""


def flush(limits: LocalLimits, aggregator: Aggregator) -> int:
    """Send changed counts, and return the number of reports. Raise StoreError; the counts are then sent later."""
    number, knew_time = _report(limits, aggregator)
    if not knew_time:
        number += _report(limits, aggregator)[0]
    return number


def _report(limits: LocalLimits, aggregator: Aggregator) -> tuple[int, bool]:
    """Return the number of reports sent, and True if all their meters knew the store's time before."""
    number, knew_time = 0, True
    batches = limits.collect()
    for batch in batches:
        sent_at = limits.clock()
        try:
            replies = aggregator.damp([report for _, report in batch])
        except StoreError:
            for failed in chain([batch], batches):
                limits.fail(failed)
            raise
        limits.take(batch, replies, sent_at)
        number += len(batch)
        knew_time = knew_time and all(report.sent_at is not None for _, report in batch)
    return number, knew_time


class Flusher:
    """The periodic flush of the local limits of a store, with jitter, so that processes do not flush together."""

    def __init__(self, limits: LocalLimits, aggregator: Aggregator, processes: Callable[[], int]) -> None:
        self.limits, self.aggregator, self._processes = limits, aggregator, processes

    @property
    def first(self) -> float:
        return self.limits.interval * random.random()  # noqa: S311 - nobody gains by guessing it

    def __call__(self) -> float:
        """Flush, and return the seconds until the next flush. Raise StoreError if the store fails."""
        limits = self.limits
        wait = limits.interval * (1 + MAX_JITTER * random.random())  # noqa: S311
        limits.processes = self._processes()
        limits.due_at = limits.clock() + wait
        flush(limits, self.aggregator)
        return wait
