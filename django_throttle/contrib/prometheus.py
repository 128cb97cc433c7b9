"""Metrics for Prometheus: decisions, their duration, and the state of the store, without idents.

Enable them by ``HOOKS = ["django_throttle.contrib.prometheus.count"]``. The extra ``prometheus`` installs the required
package prometheus-client. The metrics are in its default registry. In its multiprocess mode, the background thread
sets the gauges once a second.
"""

from __future__ import annotations

import os
from typing import Final

from django_throttle.exceptions import needs_extra
from django_throttle.observe.metrics import (
    BREAKERS,
    BUCKETS,
    COUNTED,
    LEASES,
    SECONDS,
    UNCONFIRMED,
    Add,
    Counts,
    Metric,
    held_leases,
    open_breakers,
    unconfirmed_seconds,
)
from django_throttle.observe.reports import add_periodic_work

with needs_extra("prometheus", "prometheus_client"):
    from prometheus_client import Counter, Gauge, Histogram


def name(metric: Metric) -> str:
    """Return the metric's name in Prometheus, without the suffix of a counter."""
    return f"django_throttle_{metric.name.replace(' ', '_')}"


counters: Final = {metric: Counter(name(metric), metric.text, metric.labels) for metric in COUNTED}
seconds: Final = Histogram(name(SECONDS), SECONDS.text, unit="seconds", buckets=BUCKETS)
breakers: Final = Gauge(name(BREAKERS), BREAKERS.text, multiprocess_mode="livesum")
leases: Final = Gauge(name(LEASES), LEASES.text, multiprocess_mode="livesum")
unconfirmed: Final = Gauge(name(UNCONFIRMED), UNCONFIRMED.text, unit="seconds", multiprocess_mode="livemax")


def series(metric: Metric, *values: str) -> Add:
    return counters[metric].labels(*values).inc


counts: Final = Counts("prometheus", series, seconds.observe)
count: Final = counts.count


def set_gauges() -> None:
    breakers.set(open_breakers())
    leases.set(held_leases())
    unconfirmed.set(unconfirmed_seconds())


if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
    add_periodic_work(set_gauges)
else:  # called at each scrape
    breakers.set_function(open_breakers)
    leases.set_function(held_leases)
    unconfirmed.set_function(unconfirmed_seconds)
