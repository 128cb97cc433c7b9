"""The meters of one process, at most so many; whoever calls holds a lock."""

from __future__ import annotations

import secrets
from itertools import islice
from typing import Final, NamedTuple

from django_throttle.core.command import Charge
from django_throttle.damper.aggregate import Report
from django_throttle.damper.clocks import StoreTime
from django_throttle.damper.meter import Meter

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
