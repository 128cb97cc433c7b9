"""The meters of one process: dampers by their meters, and quotas that are charged in batches."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Final, NamedTuple

from django_throttle.core.commands import Answer, Charge
from django_throttle.core.decision import Crossing, Decision, Outcome
from django_throttle.damper.aggregate import Reply, Report
from django_throttle.damper.batched import Billed, Tabs
from django_throttle.damper.meter import NEXT, Meter
from django_throttle.lifecycle import in_child
from django_throttle.store_time import StoreTime

LOOKS: Final = 16  # meters among which one is chosen to go
IDLE: Final = 30.0  # seconds after its last attempts in which a meter is forgotten
ASKS: Final = 60.0  # and for so long one that suppresses asks on: or rare and costly calls of many processes all pass

Key = tuple[str, str]  # rule id, ident


class Sent(NamedTuple):
    """A report on its way, and the meter that it is from."""

    meter: Meter
    report: Report


class Shelf:
    """Meters by rule and ident, under a name that no other process has; times are seconds on our clock."""

    __slots__ = ("_leaving", "_meters", "_name", "most", "time")

    def __init__(self, most: int) -> None:
        self.most = most
        self.time = StoreTime()
        self._name = secrets.token_urlsafe(6)
        self._meters: dict[Key, Meter] = {}  # those that reported longest ago first
        self._leaving: list[Meter] = []  # there were too many; what they have counted is still to be told

    def __len__(self) -> int:
        return len(self._meters)

    def find(self, charge: Charge, now: float) -> Meter:
        """The meter of this charge, as it is now."""
        rule, ident, _ = charge
        meter = self._meters.get((rule.id, ident)) or self._add(charge, now)
        if meter.rule is not rule:
            meter.adopt(rule, now)
        if now >= meter.until:
            meter.roll(now)
        return meter

    def forget(self, rule_id: str, ident: str) -> None:
        """Begin again from nothing."""
        self._meters.pop((rule_id, ident), None)

    def keys(self) -> list[Key]:
        """Which meters there are."""
        return list(self._meters)

    def report(self, key: Key, now: float) -> Sent | None:
        """What this meter is to report; None when there is nothing, and after a while it is forgotten."""
        meter = self._meters.get(key)
        if meter is None:
            return None
        sent = _sent(meter, now, asks=meter.factor > 0 and now - meter.seen_at <= ASKS)
        if sent is not None:
            self._meters[key] = self._meters.pop(key)  # the order is that of the last report
        elif now - meter.seen_at > IDLE:
            del self._meters[key]
        return sent

    def farewells(self, now: float) -> list[Sent]:
        """What those are to report that had to go: until there is nothing left to tell, lest a report was lost."""
        sent = [one for meter in self._leaving if (one := _sent(meter, now))]
        self._leaving = [meter for meter, _ in sent]
        return sent

    def _add(self, charge: Charge, now: float) -> Meter:
        if len(self._meters) >= self.most:
            oldest = self._meters.pop(self._least_used())
            if len(self._leaving) < self.most and not oldest.attempts.is_told:
                self._leaving.append(oldest)
        meter = Meter(charge.rule, charge.ident, self._name, now, self.time.copy())
        self._meters[charge.rule.id, charge.ident] = meter
        return meter

    def _least_used(self) -> Key:
        """The one that reported longest ago; who is suppressed is not forgotten for the sake of many others."""
        found = next((key for key, meter in islice(self._meters.items(), LOOKS) if not meter.factor), None)
        return found or next(iter(self._meters))


def _sent(meter: Meter, now: float, *, asks: bool = False) -> Sent | None:
    if meter.attempts.is_told and not asks:
        meter.attempts.mark(now)
        return None
    report = meter.report(now)
    return None if report is None else Sent(meter, report)


MOST: Final = 10_000


class Meters:
    """Decides local charges; safe to use from any thread, and empty, under a new name, after a fork.

    ``clock`` (seconds, monotonic) and ``chance`` (0 ≤ x < 1) may be replaced. ``interval`` is how often
    reports are sent, ``due`` when they are sent next. ``processes`` are the live ones. ``on_due`` sends them, where
    that takes no time and nobody else does; it is called by whoever is decided then.
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
        return len(self._shelf)

    def decide(self, charge: Charge, *, commit: bool = True) -> Decision:
        """Count an attempt under a damper and say whether it passes."""
        now = self.clock()
        if self._on_due is not None:
            self._keep_up(now)
        with self._lock:
            meter = self._shelf.find(charge, now)
            wait = meter.attempt(now, charge.cost if commit else 0, self.chance() if meter.factor else 1.0)
            return meter.refuses(self._until_then(wait, now)) if wait else meter.passes

    def judge(self, charges: Sequence[Charge], *, commit: bool = True) -> tuple[Outcome, ...]:
        """Count these attempts and say which pass; one chance decides for all, so that the strictest holds."""
        now, chance = self.clock(), self.chance()
        if self._on_due is not None:
            self._keep_up(now)
        with self._lock:
            told: list[Outcome] = []
            for charge in charges:
                if not charge.rule.is_damper:
                    told.append(self._tabs.look(charge, now))
                    continue
                meter = self._shelf.find(charge, now)
                wait = meter.attempt(now, charge.cost if commit else 0, chance)
                told.append(meter.refused(self._until_then(wait, now)) if wait else meter.passed)
            return tuple(told)

    def passed(self, charges: Sequence[Charge]) -> tuple[Crossing, ...]:
        """A call with these charges has passed: its quotas owe them; returns the shares to be told of."""
        now = self.clock()
        with self._lock:
            crossed = [self._tabs.owe(charge, now) for charge in charges if not charge.rule.is_damper]
        return tuple(chain.from_iterable(crossed))

    def forget(self, rule_id: str, ident: str) -> None:
        """Count and suppress from nothing."""
        with self._lock:
            self._shelf.forget(rule_id, ident)
            self._tabs.forget(rule_id, ident)

    def collect(self) -> list[Sent]:
        """What is to be reported now; a meter that does not know the store's time asks for it first."""
        now = self.clock()
        with self._lock:
            found, keys = self._shelf.farewells(now), self._shelf.keys()
        for key in keys:
            with self._lock:  # for each of them, so that no decision waits for all
                sent = self._shelf.report(key, now)
            if sent is not None:
                found.append(sent)
        return found

    def take(self, sent: Sequence[Sent], replies: Sequence[Reply | BaseException], sent_at: float) -> None:
        """The replies to these reports, which were sent at ``sent_at`` on our clock; an error is none."""
        now = self.clock()
        for (meter, report), reply in zip(sent, replies, strict=True):
            with self._lock:
                meter.processes = self.processes
                if isinstance(reply, BaseException):
                    meter.fail(now, self.interval)
                    continue
                meter.take(report, reply, sent_at, now)
                self._shelf.time = meter.time

    def fail(self, sent: Sequence[Sent]) -> None:
        """These reports did not arrive, as far as anybody knows."""
        self.take(sent, [TimeoutError()] * len(sent), 0.0)

    def bills(self) -> list[Billed]:
        """What quotas owe now."""
        with self._lock:
            return self._tabs.collect(self.clock())

    def pay(self, billed: Sequence[Billed], answers: Sequence[Answer | BaseException]) -> None:
        """What became of these bills; an error where nobody knows."""
        with self._lock:
            self._tabs.take(billed, answers, self.clock())

    def _renew(self) -> None:
        self._lock = Lock()
        self._shelf = Shelf(self.most)
        self._tabs = Tabs()
        self.due = self.clock() + self.interval

    def _keep_up(self, now: float) -> None:
        """Report, when it is time; or when the clock was set back."""
        if self._on_due is not None and not self.due - 2 * self.interval <= now < self.due:
            self.due = now + self.interval
            self._on_due()

    def _until_then(self, wait: float, now: float) -> float:
        """Seconds until the attempt may be tried again: until the local limiter has room, else the next factor."""
        if wait != NEXT:
            return wait
        return self.due - now if self.due > now else self.interval
