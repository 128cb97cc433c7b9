"""The limits that one process decides by itself: dampers, by their meters, and batched quotas; and how they report.

Reports and charges of all meters go to the store in few round trips, for any number of idents.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Final, NamedTuple, Protocol

from django_throttle.core.commands import Answer, Charge
from django_throttle.core.decision import Crossing, Decision, Outcome
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.batched import BatchedQuotas, Due
from django_throttle.damper.meter import NEXT, Meter
from django_throttle.exceptions import StoreError
from django_throttle.lifecycle import in_child
from django_throttle.store_time import StoreTime, micros

LOOKS: Final = 16  # meters among which the one to remove is chosen
IDLE: Final = 30.0  # seconds after its last attempts in which a meter is forgotten
ASKS: Final = 60.0  # so long one that suppresses keeps asking, or rare, costly calls of many processes would all pass

Key = tuple[str, str]  # rule id, ident


class Sent(NamedTuple):
    """A report to send, and the meter that it is from."""

    meter: Meter
    report: Report


class MeterCache:
    """Meters by rule and ident, under a name that no other process has; times are seconds on our clock."""

    __slots__ = ("_removed", "meters", "most", "name", "time")

    def __init__(self, most: int) -> None:
        self.most = most
        self.time = StoreTime()
        self.name = secrets.token_urlsafe(6)
        self.meters: dict[Key, Meter] = {}  # those that reported longest ago first
        self._removed: list[Meter] = []  # removed for lack of room, with counts that are still to be reported

    def __len__(self) -> int:
        return len(self.meters)

    def find(self, charge: Charge, now: float) -> Meter:
        """The meter of this charge, as it is now."""
        rule, ident, _ = charge
        meter = self.meters.get((rule.id, ident)) or self._add(charge, now)
        if meter.rule is not rule:
            meter.adopt(rule, now)
        if now >= meter.until:
            meter.roll(now)
        return meter

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again from nothing."""
        self.meters.pop((rule_id, ident), None)

    def keys(self) -> list[Key]:
        """The keys of all meters."""
        return list(self.meters)

    def report(self, key: Key, now: float) -> Sent | None:
        """The report of this meter; None when there is nothing new, and after IDLE seconds of that it is forgotten."""
        meter = self.meters.get(key)
        if meter is None:
            return None
        sent = _sent(meter, now, asks=meter.factor > 0 and now - meter.seen_at <= ASKS)
        if sent is not None:
            self.meters[key] = self.meters.pop(key)  # the order is that of the last report
        elif now - meter.seen_at > IDLE:
            del self.meters[key]
        return sent

    def reports_of_removed(self, now: float) -> list[Sent]:
        """The reports of removed meters, which stay until everything is confirmed."""
        sent = [one for meter in self._removed if (one := _sent(meter, now))]
        self._removed = [meter for meter, _ in sent]
        return sent

    def _add(self, charge: Charge, now: float) -> Meter:
        if len(self.meters) >= self.most:
            oldest = self.meters.pop(self._least_used())
            if len(self._removed) < self.most and not oldest.attempts.is_confirmed:
                self._removed.append(oldest)
        meter = Meter(charge.rule, charge.ident, self.name, now, self.time.copy())
        self.meters[charge.rule.id, charge.ident] = meter
        return meter

    def _least_used(self) -> Key:
        """The one that reported longest ago, unless it suppresses: many other idents must not end a suppression."""
        found = next((key for key, meter in islice(self.meters.items(), LOOKS) if not meter.factor), None)
        return found or next(iter(self.meters))


def _sent(meter: Meter, now: float, *, asks: bool = False) -> Sent | None:
    if meter.attempts.is_confirmed and not asks:
        meter.attempts.mark(now)
        return None
    report = meter.report(now)
    return None if report is None else Sent(meter, report)


MOST: Final = 10_000


class Meters:
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

    def __len__(self) -> int:
        return len(self.cache)

    def decide(self, charge: Charge, *, commit: bool = True) -> Decision:
        """Count an attempt under a damper and say whether it passes."""
        now = self.clock()
        if self._on_due is not None:
            self._keep_up(now)
        with self._lock:
            meter = self.cache.find(charge, now)
            wait = meter.attempt(now, charge.cost if commit else 0, self.chance() if meter.factor else 1.0)
            return meter.refuses(self._until_then(wait, now)) if wait else meter.passes

    def judge(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]:
        """Count these attempts and decide each; they share one random number, so that the strictest rule holds."""
        now, chance = self.clock(), self.chance()
        if self._on_due is not None:
            self._keep_up(now)
        with self._lock:
            outcomes: list[Outcome] = []
            for charge in charges:
                if not charge.rule.is_damper:
                    outcomes.append(self._quotas.look(charge, now))
                    continue
                meter = self.cache.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                outcomes.append(meter.refused(self._until_then(wait, now)) if wait else meter.passed)
            return tuple(outcomes)

    def passed(self, charges: Sequence[Charge]) -> tuple[Crossing, ...]:
        """A call with these charges has passed: add it to its batched quotas. Returns the warnings that are due."""
        now = self.clock()
        with self._lock:
            crossed = [self._quotas.add(charge, now) for charge in charges if not charge.rule.is_damper]
        return tuple(chain.from_iterable(crossed))

    def forget(self, rule_id: str, ident: str) -> None:
        """Start again from nothing: the budget was reset."""
        with self._lock:
            self.cache.forget(rule_id, ident)
            self._quotas.forget(rule_id, ident)

    def collect(self) -> list[Sent]:
        """The reports to send now; a meter that does not know the store's time yet asks for it first."""
        now = self.clock()
        with self._lock:
            found, keys = self.cache.reports_of_removed(now), self.cache.keys()
        for key in keys:
            with self._lock:  # for each by itself, so that no decision waits for all of them
                sent = self.cache.report(key, now)
            if sent is not None:
                found.append(sent)
        return found

    def take(self, sent: Sequence[Sent], replies: Sequence[Reply | BaseException], sent_at: float) -> None:
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

    def fail(self, sent: Sequence[Sent]) -> None:
        """These reports may not have arrived."""
        self.take(sent, [TimeoutError()] * len(sent), 0.0)

    def charges_due(self) -> list[Due]:
        """The charges of batched quotas to send now."""
        with self._lock:
            return self._quotas.collect(self.clock())

    def charged(self, due: Sequence[Due], answers: Sequence[Answer | BaseException]) -> None:
        """Adopt the answers to these charges; an error where the store may have charged or not."""
        with self._lock:
            self._quotas.take(due, answers, self.clock())

    def _renew(self) -> None:
        self._lock = Lock()
        self.cache = MeterCache(self.most)
        self._quotas = BatchedQuotas()
        self.due = self.clock() + self.interval

    def _keep_up(self, now: float) -> None:
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


def flush(meters: Meters, aggregator: Aggregator) -> int:
    """Send what changed; returns the number of messages. Raises StoreError, and the counts are sent later."""
    sent = _report(meters, aggregator)
    if any(report.sent_at is None for _, report in sent):  # now they know the time
        sent += _report(meters, aggregator)
    return len(sent) + _charge(meters, aggregator)


def _report(meters: Meters, aggregator: Aggregator) -> list[Sent]:
    began = meters.clock()
    sent = meters.collect()
    for at in range(0, len(sent), BATCH):
        batch = sent[at : at + BATCH]
        sent_at = meters.clock()
        late = micros(sent_at - began)  # of very many, the last are sent a while after they were made
        try:
            replies = aggregator.damp([_leaving(report, late) for _, report in batch])
        except StoreError:
            meters.fail(sent[at:])
            raise
        meters.take(batch, replies, sent_at)
    return sent


def _leaving(report: Report, late: int) -> Report:
    return report if report.sent_at is None else report._replace(sent_at=report.sent_at + late)


def _charge(meters: Meters, aggregator: Aggregator) -> int:
    due = meters.charges_due()
    for at in range(0, len(due), BATCH):
        batch = due[at : at + BATCH]
        try:
            answers = aggregator.charge([charge for _, charge in batch])
        except StoreError as error:
            meters.charged(batch, [error] * len(batch))
            raise
        meters.charged(batch, answers)
    return len(due)


class Flusher:
    """The periodic flush of one store's meters, with jitter, so that processes do not flush at the same time."""

    def __init__(self, meters: Meters, aggregator: Aggregator, processes: Callable[[], int]) -> None:
        self.meters, self.aggregator, self._processes = meters, aggregator, processes

    @property
    def first(self) -> float:
        """Seconds until the first flush."""
        return self.meters.interval * random.random()  # noqa: S311 - nobody gains by guessing it

    def __call__(self) -> float:
        """Flush; returns the seconds until the next time. Raises StoreError."""
        meters = self.meters
        wait = meters.interval * (1 + JITTER * random.random())  # noqa: S311
        meters.processes = self._processes()
        meters.due = meters.clock() + wait
        flush(meters, self.aggregator)
        return wait
