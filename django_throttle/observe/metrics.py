"""Metrics of decisions, independent of the metrics library; see `prometheus.py` and `opentelemetry.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from django_throttle import rulebook
from django_throttle.core.decision import Outcome
from django_throttle.observe.reports import Report
from django_throttle.signals import costly, layer_dropped
from django_throttle.stores import get_store

MAX_LABEL_VALUES: Final = 1000  # rules, and scopes, with series of their own
OTHERS: Final = "(others)"
BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds


class Metric(NamedTuple):
    """The definition of a metric."""

    name: str  #: in words
    text: str  #: help text
    labels: tuple[str, ...]  #: names of the labels
    unit: str  #: in UCUM's notation


DECISIONS: Final = Metric("decisions", "What each rule said of a call.", ("rule", "outcome", "reason"), "{outcome}")
FAILURES: Final = Metric("store failures", "Decisions made without the store, by cause.", ("cause",), "{decision}")
SECONDS: Final = Metric("decision", "Time that one decision took.", (), "s")
COSTLY: Final = Metric("costly", "Requests that used more than LOG_COST_ABOVE allows.", ("scope",), "{request}")
BREAKERS: Final = Metric("breakers open", "Circuit breakers that are open: 1 a process.", (), "{breaker}")
LEASES: Final = Metric("leases held", "Connections and slots that are held open.", (), "{lease}")
UNCONFIRMED: Final = Metric("rules unconfirmed", "Time since a process last knew its rules to be the newest.", (), "s")
DROPS: Final = Metric("layer drops", "Full queues, each of which lost a message.", ("method",), "{queue}")
COUNTED: Final = (DECISIONS, FAILURES, COSTLY, DROPS)

Add = Callable[[int], object]  # adds to a series


def open_breakers() -> int:
    """Return the number of open circuit breakers of this process. A Cluster has one for each node."""
    return get_store().open_breakers


def held_leases() -> int:
    """Return the number of leases that this process holds."""
    return len(get_store().leases)


def unconfirmed_seconds() -> float:
    """Return the seconds since this process confirmed that its rules are the newest; usually up to half a second."""
    return rulebook.unconfirmed()


class Counts:
    """Counts decisions and signals. No label names a caller. Rules and scopes above 1000 share the label OTHERS.

    ``name`` is the name of the metrics library, for the receivers of signals. ``series`` takes a metric and the values
    of its labels, and returns the function that adds to the series. ``observe`` is called with the seconds of each
    decision.
    """

    def __init__(self, name: str, series: Callable[..., Add], observe: Callable[[float], object]) -> None:
        self.series, self.observe = series, observe
        #: Series by rule, allowed, shadow, and ``id`` of the reason, whose hash would be slow.
        self.series_cache: dict[tuple[str, bool, bool, int], Add] = {}
        self.rules: set[str] = set()
        self.scopes: set[str] = set()
        layer_dropped.connect(self.count_drop, dispatch_uid=f"django_throttle.{name}")
        costly.connect(self.count_costly, dispatch_uid=f"django_throttle.{name}")

    def count(self, report: Report) -> None:
        decision = report.decision
        for outcome in decision.outcomes:
            add = self.series_cache.get((outcome.rule, outcome.allowed, outcome.shadow, id(outcome.reason)))
            (add or self._new_series(outcome))(1)
        self.observe(report.seconds)
        if decision.cause is not None:
            self.series(FAILURES, decision.cause.value)(1)

    def _new_series(self, outcome: Outcome) -> Add:
        rule, reason = outcome.rule, outcome.reason
        if rule not in self.rules and len(self.rules) >= MAX_LABEL_VALUES:
            return self.series(DECISIONS, OTHERS, outcome.verdict, reason.value)
        self.rules.add(rule)
        add = self.series(DECISIONS, rule, outcome.verdict, reason.value)
        self.series_cache[rule, outcome.allowed, outcome.shadow, id(reason)] = add
        return add

    def count_drop(self, *, method: str, queues: int, **_: object) -> None:
        """Count the messages that a channel layer has dropped."""
        self.series(DROPS, method)(queues)

    def count_costly(self, *, scope: str, **_: object) -> None:
        """Count a request that used too much."""
        if len(self.scopes) < MAX_LABEL_VALUES:
            self.scopes.add(scope)
        self.series(COSTLY, scope if scope in self.scopes else OTHERS)(1)
