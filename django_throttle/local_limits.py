"""The limits that a process decides by itself and reports afterwards: dampers, by their meters, and batched quotas.

Reports and charges of all of them go to the store in few round trips, for any number of idents.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple, Protocol

from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Decide
from django_throttle.core.decide import crossings, outcomes_of
from django_throttle.core.decision import Crossing, Decision, Outcome
from django_throttle.core.rule import Rule
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.meter import NEXT, Key, MeterCache, MeterReport
from django_throttle.exceptions import Cause, StoreError
from django_throttle.lifecycle import in_child
from django_throttle.store_time import micros

MOST: Final = 10_000  # meters, and batched quotas
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


class DueCharge(NamedTuple):
    """A charge to send, and the quota that it is from."""

    quota: BatchedQuota
    charge: Charge


class BatchedQuotas(dict[Key, BatchedQuota]):
    """The batched quotas of one process, at most MOST; the caller holds a lock."""

    _in_doubt = False

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

    def collect(self, now: float) -> list[DueCharge]:
        found: list[DueCharge] = []
        for key, quota in list(self.items()):
            charge = quota.due(in_doubt=self._in_doubt)
            if charge is not None:
                found.append(DueCharge(quota, charge))
            elif now - quota.seen_at > IDLE:
                del self[key]
        return found

    def take(self, due: Sequence[DueCharge], answers: Sequence[Answer | BaseException], now: float) -> None:
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
        quota = self.get(key)
        if quota is None:
            if len(self) >= MOST:
                idle = (key for key, known in self.items() if not known.uncharged)
                self.pop(next(idle, None) or next(iter(self)))
            quota = self[key] = BatchedQuota(charge.rule, charge.ident, now)
        elif quota.rule is not charge.rule:
            quota.adopt(charge.rule)
        quota.seen_at = now
        return quota


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
                if not charge.rule.is_damper:
                    outcomes.append(self._quotas.look(charge, now))
                    continue
                meter = self.cache.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                outcomes += meter.refuses(self._until_then(wait, now)).outcomes if wait else (meter.passing_outcome,)
            return tuple(outcomes)

    def add_passed(self, charges: Sequence[Charge]) -> tuple[Crossing, ...]:
        """A call with these charges has passed: add it to its batched quotas. Returns the warnings that are due."""
        now = self.clock()
        with self._lock:
            crossed = [self._quotas.add(charge, now) for charge in charges if not charge.rule.is_damper]
        return tuple(chain.from_iterable(crossed))

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again from nothing: the budget was reset."""
        with self._lock:
            self.cache.meters.pop((rule_id, ident), None)
            self._quotas.pop((rule_id, ident), None)

    def collect(self) -> list[MeterReport]:
        now = self.clock()
        with self._lock:
            found, keys = self.cache.reports_of_removed(now), list(self.cache.meters)
        for key in keys:
            with self._lock:  # for each by itself, so that no decision waits for all of them
                sent = self.cache.report(key, now)
            if sent is not None:
                found.append(sent)
        return found

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
        """These reports may not have arrived."""
        self.take(sent, [TimeoutError()] * len(sent), 0.0)

    def charges_due(self) -> list[DueCharge]:
        with self._lock:
            return self._quotas.collect(self.clock())

    def charged(self, due: Sequence[DueCharge], answers: Sequence[Answer | BaseException]) -> None:
        """Adopt the answers to these charges; an error where the store may have charged or not."""
        with self._lock:
            self._quotas.take(due, answers, self.clock())

    def _renew(self) -> None:
        self._lock = Lock()
        self.cache = MeterCache(self.most)
        self._quotas = BatchedQuotas()
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


BATCH: Final = 500  # reports in one round trip
JITTER: Final = 0.1  # most that an interval is prolonged by, as a share of it


class Aggregator(Protocol):
    """Takes reports or charges in one round trip; an error may stand in place of a reply. Raises StoreError."""

    def damp(self, reports: Sequence[Report]) -> Sequence[Reply | BaseException]: ...

    def charge(self, charges: Sequence[Charge]) -> Sequence[Answer | BaseException]: ...


def flush(limits: LocalLimits, aggregator: Aggregator) -> int:
    """Send what changed; returns the number of messages. Raises StoreError, and the counts are sent later."""
    sent = _report(limits, aggregator)
    if any(report.sent_at is None for _, report in sent):  # now they know the time
        sent += _report(limits, aggregator)
    return len(sent) + _charge(limits, aggregator)


def _report(limits: LocalLimits, aggregator: Aggregator) -> list[MeterReport]:
    began = limits.clock()
    sent = limits.collect()
    for at in range(0, len(sent), BATCH):
        batch = sent[at : at + BATCH]
        sent_at = limits.clock()
        late = micros(sent_at - began)  # of very many, the last are sent a while after they were made
        try:
            replies = aggregator.damp(
                [one if one.sent_at is None else one._replace(sent_at=one.sent_at + late) for _, one in batch]
            )
        except StoreError:
            limits.fail(sent[at:])
            raise
        limits.take(batch, replies, sent_at)
    return sent


def _charge(limits: LocalLimits, aggregator: Aggregator) -> int:
    due = limits.charges_due()
    for at in range(0, len(due), BATCH):
        batch = due[at : at + BATCH]
        try:
            answers = aggregator.charge([charge for _, charge in batch])
        except StoreError as error:
            limits.charged(batch, [error] * len(batch))
            raise
        limits.charged(batch, answers)
    return len(due)


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
