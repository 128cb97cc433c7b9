"""A process with one damper rule, and an aggregator that may be away."""

import random
from itertools import count

import pytest

from django_throttle.core import Decision, Rule
from django_throttle.core.commands import Charge
from django_throttle.exceptions import Cause, StoreError
from django_throttle.local.damper_aggregate import Aggregates
from django_throttle.local.limits import LocalLimits, flush
from tests.clock import START, FrozenClock

RULE = Rule("account", "100/s", algorithm="damper")


class Away:
    """An aggregator that may be away; ``asked`` are the reports of the last round trip."""

    def __init__(self, clock: FrozenClock) -> None:
        self.aggregates = Aggregates(clock)
        self.is_away = False
        self.asked: list[object] = []

    def damp(self, reports: list[object]) -> list[object]:
        self.asked = list(reports)
        if self.is_away:
            raise StoreError(Cause.UNAVAILABLE)
        return list(self.aggregates.damp(reports))  # type: ignore[arg-type]


class Process:
    """A process with one damper rule, on the test's clock, which reports every two seconds when it is told to run."""

    def __init__(self, clock: FrozenClock, store: Away, rule: Rule = RULE, seed: int = 7) -> None:
        self.clock, self.store, self.rule = clock, store, rule
        self.limits = LocalLimits(lambda: clock() - START + 5.0, random.Random(seed).random)
        self.flush_at = clock.now_us + 2_000_000

    def attempt(self, ident: str = "u", cost: int = 1) -> Decision:
        return self.limits.decide_damper(Charge(self.rule, ident, cost))

    def flush(self) -> None:
        self.limits.due_at = self.limits.clock() + 2.0
        try:
            flush(self.limits, self.store)  # type: ignore[arg-type]
        except StoreError:
            pass

    def run(self, seconds: float, rate: float, ident: str = "u") -> float:
        """Attempts at this rate, evenly; returns the rate at which they passed."""
        passed, until = 0, self.clock.now_us + round(seconds * 1_000_000)
        for at in count():
            due = self.clock.now_us if not at else self.clock.now_us + round(1_000_000 / rate)
            if due >= until:
                break
            self.clock.now_us = due
            if self.clock.now_us >= self.flush_at:
                self.flush_at += 2_000_000
                self.flush()
            passed += self.attempt(ident).allowed
        self.clock.now_us = until
        return passed / seconds

    @property
    def factor(self) -> float:
        return self.limits.decide_damper(Charge(self.rule, "u", 0), commit=False).outcomes[0].factor


def away(clock: FrozenClock) -> Away:
    return Away(clock)


def one_process(clock: FrozenClock, store: Away) -> Process:
    return Process(clock, store)


store = pytest.fixture(away)
process = pytest.fixture(one_process)
