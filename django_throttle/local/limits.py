"""What a process decides by itself: dampers, by their meters, whose counts it reports."""

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
from django_throttle.local.damper_aggregate import Reply, Report
from django_throttle.local.damper_meter import NEXT, MeterCache, MeterReport
from django_throttle.local.prepaid import PrepaidBudgets
from django_throttle.runtime import in_child

MOST: Final = 10_000  # meters, and prepaid budgets
BATCH: Final = 500  # reports, or refunds, in one round trip
IDLE: Final = 30.0  # seconds after which a quota with nothing to charge is forgotten


class LocalLimits:
    """Decides local charges; safe to use from any thread, and empty, under a new name, after a fork.

    ``clock`` (seconds, monotonic) and ``chance`` (0 ≤ x < 1) may be replaced. Reports are sent every ``interval``
    seconds, next at ``due``, by the agent; or by ``on_due``, which the next decision calls, where sending takes no
    time. ``processes`` is the number of live ones.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        interval: float = 2.0,
        most: int = MOST,
        on_due: Callable[[], object] | None = None,
    ) -> None:
        self.clock, self.chance, self.interval, self.most = clock, chance, interval, most
        self.processes = 1
        self.prepaid = PrepaidBudgets()
        self._on_due = on_due
        self._renew()
        in_child(self, type(self)._renew)

    def decide_damper(self, charge: Charge, *, commit: bool = True) -> Decision:
        """Count an attempt under a damper and say whether it passes."""
        now = self.clock()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            meter = self.cache.find(charge, now)
            wait = meter.attempt(now, charge.cost if commit else 0, self.chance() if meter.factor else 1.0)
            return meter.refuses(self._until_then(wait, now)) if wait else meter.passing_decision

    def decide_all(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]:
        """Count these attempts and decide each; they share one random number, so that the strictest rule holds."""
        now, chance = self.clock(), self.chance()
        if self._on_due is not None:
            self._flush_when_due(now)
        with self._lock:
            outcomes: list[Outcome] = []
            for charge in charges:
                meter = self.cache.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                outcomes += meter.refuses(self._until_then(wait, now)).outcomes if wait else (meter.passing_outcome,)
            return tuple(outcomes)

    def suppressed(self, most: int) -> list[tuple[str, str, float]]:
        """Whom dampers refuse a share now: rule, ident and suppression factor, the highest first, so many at most."""
        with self._lock:
            meters = list(self.cache.meters.values())
        found = [(meter.rule.name, meter.ident, meter.factor) for meter in meters if meter.factor]
        return nlargest(most, found, key=itemgetter(2))

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again from nothing: the budget was reset."""
        with self._lock:
            self.cache.meters.pop((rule_id, ident), None)
        self.prepaid.forget(lambda budget: (budget.rule.id, budget.ident) == (rule_id, ident))

    def collect(self) -> Iterator[list[MeterReport]]:
        """The reports to send, in batches, each made as it is asked for: all of them together take too much memory."""
        reports = self._reports()
        while batch := list(islice(reports, BATCH)):
            yield batch

    def _reports(self) -> Iterator[MeterReport]:
        with self._lock:
            removed, keys = self.cache.reports_of_removed(self.clock()), list(self.cache.meters)
        yield from removed
        for key in keys:
            with self._lock:  # for each by itself, so that no decision waits for all of them
                sent = self.cache.report(key, self.clock())
            if sent is not None:
                yield sent

    def take(self, sent: Sequence[MeterReport], replies: Sequence[Reply | BaseException], sent_at: float) -> None:
        """Adopt the replies to reports sent at ``sent_at`` on our clock; an error stands for a failed report."""
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
        self.cache = MeterCache(self.most)
        self.due = self.clock() + self.interval

    def _flush_when_due(self, now: float) -> None:
        """Send reports when they are due, or when the clock was set back."""
        if self._on_due is not None and not self.due - 2 * self.interval <= now < self.due:
            self.due = now + self.interval
            self._on_due()

    def _until_then(self, wait: float, now: float) -> float:
        """Seconds until the attempt may be tried again: until the bucket has room, else until the next factor."""
        if wait != NEXT:
            return wait
        return self.due - now if self.due > now else self.interval


JITTER: Final = 0.1  # most that an interval is prolonged by, as a share of it


class Aggregator(Protocol):
    """Takes reports in one round trip; an error may stand in place of a reply. Raises StoreError."""

    def damp(self, reports: Sequence[Report]) -> Sequence[Reply | BaseException]: ...


def flush(limits: LocalLimits, aggregator: Aggregator) -> int:
    """Send what changed; returns the number of reports. Raises StoreError, and the counts are sent later."""
    number, was_known = _report(limits, aggregator)
    if not was_known:
        number += _report(limits, aggregator)[0]
    return number


def _report(limits: LocalLimits, aggregator: Aggregator) -> tuple[int, bool]:
    """Returns how many reports were sent, and whether all their meters knew the store's time before."""
    number, was_known = 0, True
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
        was_known = was_known and all(report.sent_at is not None for _, report in batch)
    return number, was_known


class Flusher:
    """The periodic flush of one store's limits, with jitter, so that processes do not flush at the same time."""

    def __init__(self, limits: LocalLimits, aggregator: Aggregator, processes: Callable[[], int]) -> None:
        self.limits, self.aggregator, self._processes = limits, aggregator, processes

    @property
    def first(self) -> float:
        return self.limits.interval * random.random()  # noqa: S311 - nobody gains by guessing it

    def __call__(self) -> float:
        """Flush; returns the seconds until the next time. Raises StoreError."""
        limits = self.limits
        wait = limits.interval * (1 + JITTER * random.random())  # noqa: S311
        limits.processes = self._processes()
        limits.due = limits.clock() + wait
        flush(limits, self.aggregator)
        return wait
