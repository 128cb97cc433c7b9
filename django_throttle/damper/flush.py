"""Sends the reports and charges of all meters to the store, in few round trips for any number of idents."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from django_throttle.core.commands import Answer, Charge
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.meters import Meters, Sent
from django_throttle.exceptions import StoreError
from django_throttle.store_time import micros

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
