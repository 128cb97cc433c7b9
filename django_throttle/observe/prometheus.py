"""Metrics for Prometheus: what rules decide, how long it takes, and how the store is. No identities.

Enabled by ``HOOKS = ["django_throttle.observe.prometheus.count"]``; needs prometheus-client, which the extra
``prometheus`` brings. The metrics are in that package's own registry, so whatever serves it serves them. In its
multiprocess mode the two gauges are set once a second by the background thread.
"""

from __future__ import annotations

import os
from typing import Final

from django.dispatch import receiver

from django_throttle.core.decision import Outcome
from django_throttle.exceptions import needs_extra
from django_throttle.observe.reports import Report, add_periodic_work
from django_throttle.signals import costly, layer_dropped
from django_throttle.stores import get_store

with needs_extra("prometheus", "prometheus_client"):
    from prometheus_client import Counter, Gauge, Histogram

MOST_RULES: Final = 1000
OTHERS: Final = "(others)"
BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

decisions: Final = Counter("django_throttle_decisions", "What each rule said of a call.", ("rule", "outcome", "reason"))
failures: Final = Counter("django_throttle_store_failures", "Decisions made without the store, by cause.", ("cause",))
seconds: Final = Histogram("django_throttle_decision_seconds", "Time that one decision took.", buckets=BUCKETS)
costly_count: Final = Counter(
    "django_throttle_costly", "Requests that used more than LOG_COST_ABOVE allows.", ("scope",)
)
breakers: Final = Gauge(
    "django_throttle_breakers_open", "Circuit breakers that are open: 1 a process.", multiprocess_mode="livesum"
)
leases: Final = Gauge(
    "django_throttle_leases_held", "Connections and slots that are held open.", multiprocess_mode="livesum"
)
drops: Final = Counter("django_throttle_layer_drops", "Full queues, each of which lost a message.", ("method",))

# By rule, allowed, shadow, and identity of the reason: to find its hash takes as long as to count.
_counters: dict[tuple[str, bool, bool, int], Counter] = {}
_rules: set[str] = set()
known_scopes: set[str] = set()


def count(report: Report) -> None:
    """The hook: count what was decided."""
    decision = report.decision
    for outcome in decision.outcomes:
        counter = _counters.get((outcome.rule, outcome.allowed, outcome.shadow, id(outcome.reason)))
        (counter or _new_counter(outcome)).inc()
    seconds.observe(report.seconds)
    if decision.cause is not None:
        failures.labels(decision.cause.value).inc()


def _new_counter(outcome: Outcome) -> Counter:
    """The counter of what has not been seen before; past 1000 rules they share one name."""
    rule, allowed, shadow, reason = outcome.rule, outcome.allowed, outcome.shadow, outcome.reason
    if rule not in _rules and len(_rules) >= MOST_RULES:
        return decisions.labels(OTHERS, outcome.verdict, reason.value)
    _rules.add(rule)
    counter = _counters[rule, allowed, shadow, id(reason)] = decisions.labels(rule, outcome.verdict, reason.value)
    return counter


@receiver(layer_dropped, dispatch_uid="django_throttle.prometheus")
def count_drop(*, method: str, queues: int, **_: object) -> None:
    """Count what a channel layer has dropped."""
    drops.labels(method).inc(queues)


def count_costly(scope: str, **_: object) -> None:
    """Count a request that used too much; past 1000 scopes they share one name."""
    if len(known_scopes) < MOST_RULES:
        known_scopes.add(scope)
    costly_count.labels(scope if scope in known_scopes else OTHERS).inc()


costly.connect(count_costly, dispatch_uid="django_throttle.prometheus")


def open_breakers() -> int:
    """How many circuit breakers of this process are open: one, or one for each node of a Cluster."""
    return get_store().open_breakers


def held_leases() -> int:
    return len(get_store().leases)


def set_gauges() -> None:
    breakers.set(open_breakers())
    leases.set(held_leases())


if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
    add_periodic_work(set_gauges)
else:  # asked for at each scrape
    breakers.set_function(open_breakers)
    leases.set_function(held_leases)
