"""What is counted of decisions, for whichever library keeps it: `prometheus.py` and `opentelemetry.py` are two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from django_throttle import rulebook
from django_throttle.core.decision import Outcome
from django_throttle.observe.reports import Report
from django_throttle.signals import costly, layer_dropped
from django_throttle.stores import get_store

MOST_RULES: Final = 1000  # and scopes
OTHERS: Final = "(others)"
BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds


class Metric(NamedTuple):
    """A figure: its name in words, what it says, what tells its series apart, and its unit as UCUM has it."""

    name: str
    text: str
    labels: tuple[str, ...]
    unit: str


DECISIONS: Final = Metric("decisions", "What each rule said of a call.", ("rule", "outcome", "reason"), "{outcome}")
FAILURES: Final = Metric("store failures", "Decisions made without the store, by cause.", ("cause",), "{decision}")
SECONDS: Final = Metric("decision", "Time that one decision took.", (), "s")
COSTLY: Final = Metric("costly", "Requests that used more than LOG_COST_ABOVE allows.", ("scope",), "{request}")
BREAKERS: Final = Metric("breakers open", "Circuit breakers that are open: 1 a process.", (), "{breaker}")
LEASES: Final = Metric("leases held", "Connections and slots that are held open.", (), "{lease}")
UNCONFIRMED: Final = Metric("rules unconfirmed", "Time since a process last knew its rules to be the newest.", (), "s")
DROPS: Final = Metric("layer drops", "Full queues, each of which lost a message.", ("method",), "{queue}")
COUNTED: Final = (DECISIONS, FAILURES, COSTLY, DROPS)

Add = Callable[[int], object]  # more of one series


def open_breakers() -> int:
    """How many circuit breakers of this process are open: one, or one for each node of a Cluster."""
    return get_store().open_breakers


def held_leases() -> int:
    return len(get_store().leases)


def unconfirmed_seconds() -> float:
    """For how long this process has not known whether its rules are the newest; about RULES_POLL when all is well."""
    return rulebook.unconfirmed()


class Counts:
    """Counts reports and signals. No label is of a caller, and rules or scopes past 1000 share one name.

    ``series`` returns what adds to a metric's series of these values of its labels; ``observe`` is told each
    decision's seconds. ``name`` is of the library, as each has a receiver of its own.
    """

    def __init__(self, name: str, series: Callable[..., Add], observe: Callable[[float], object]) -> None:
        self.series, self.observe = series, observe
        # By rule, allowed, shadow, and identity of the reason: to find its hash takes as long as to count.
        self.known: dict[tuple[str, bool, bool, int], Add] = {}
        self.rules: set[str] = set()
        self.scopes: set[str] = set()
        layer_dropped.connect(self.count_drop, dispatch_uid=f"django_throttle.{name}")
        costly.connect(self.count_costly, dispatch_uid=f"django_throttle.{name}")

    def count(self, report: Report) -> None:
        """Count what was decided."""
        decision = report.decision
        for outcome in decision.outcomes:
            add = self.known.get((outcome.rule, outcome.allowed, outcome.shadow, id(outcome.reason)))
            (add or self._new(outcome))(1)
        self.observe(report.seconds)
        if decision.cause is not None:
            self.series(FAILURES, decision.cause.value)(1)

    def _new(self, outcome: Outcome) -> Add:
        """What adds to a series that has not been seen before."""
        rule, reason = outcome.rule, outcome.reason
        if rule not in self.rules and len(self.rules) >= MOST_RULES:
            return self.series(DECISIONS, OTHERS, outcome.verdict, reason.value)
        self.rules.add(rule)
        add = self.series(DECISIONS, rule, outcome.verdict, reason.value)
        self.known[rule, outcome.allowed, outcome.shadow, id(reason)] = add
        return add

    def count_drop(self, *, method: str, queues: int, **_: object) -> None:
        """Count what a channel layer has dropped."""
        self.series(DROPS, method)(queues)

    def count_costly(self, *, scope: str, **_: object) -> None:
        """Count a request that used too much."""
        if len(self.scopes) < MOST_RULES:
            self.scopes.add(scope)
        self.series(COSTLY, scope if scope in self.scopes else OTHERS)(1)
