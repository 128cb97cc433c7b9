"""Metrics for Prometheus: decisions, their duration, and the state of the store, without idents.

Enable them by ``HOOKS = ["django_throttle.contrib.prometheus.count"]``. The extra ``prometheus`` installs the required
package prometheus-client. The metrics are in its default registry. In its multiprocess mode, the background thread
sets the gauges once a second.
"""

from __future__ import annotations

import os
from typing import Final

from django_throttle.exceptions import needs_extra
from django_throttle.observe import metrics
from django_throttle.observe.reports import add_periodic_work

with needs_extra("prometheus", "prometheus_client"):
    from prometheus_client import Counter, Gauge, Histogram


def name(metric: metrics.Metric) -> str:
    """Return the metric's name in Prometheus, without the suffix of a counter."""
    return f"django_throttle_{metric.name.replace(' ', '_')}"


counters: Final = {metric: Counter(name(metric), metric.text, metric.labels) for metric in metrics.COUNTED}
seconds: Final = Histogram(name(metrics.SECONDS), metrics.SECONDS.text, unit="seconds", buckets=metrics.BUCKETS)
breakers: Final = Gauge(name(metrics.BREAKERS), metrics.BREAKERS.text, multiprocess_mode="livesum")
leases: Final = Gauge(name(metrics.LEASES), metrics.LEASES.text, multiprocess_mode="livesum")
unconfirmed: Final = Gauge(
    name(metrics.UNCONFIRMED), metrics.UNCONFIRMED.text, unit="seconds", multiprocess_mode="livemax"
)


def series(metric: metrics.Metric, *values: str) -> metrics.Add:
    return counters[metric].labels(*values).inc


counts: Final = metrics.Counts("prometheus", series, seconds.observe)
count: Final = counts.count


def set_gauges() -> None:
    breakers.set(metrics.open_breakers())
    leases.set(metrics.held_leases())
    unconfirmed.set(metrics.unconfirmed_seconds())


if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
    add_periodic_work(set_gauges)
else:  # called at each scrape
    breakers.set_function(metrics.open_breakers)
    leases.set_function(metrics.held_leases)
    unconfirmed.set_function(metrics.unconfirmed_seconds)
