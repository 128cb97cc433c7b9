"""What one process decides by itself for a store: dampers by their meters, and quotas that are charged in batches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock
from typing import Final

from django_throttle.core.command import Answer, Charge
from django_throttle.core.decision import Crossing, Decision, Outcome
from django_throttle.damper.aggregate import Reply
from django_throttle.damper.meter import NEXT
from django_throttle.damper.shelf import Sent, Shelf
from django_throttle.damper.tabs import Billed, Tabs
from django_throttle.forks import in_child

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
