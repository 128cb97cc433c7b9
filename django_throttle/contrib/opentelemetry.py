"""Metrics for OpenTelemetry, by the provider of the site, with the same figures as `prometheus.py`.

Enable them by ``HOOKS = ["django_throttle.contrib.opentelemetry.count"]``. The extra ``opentelemetry`` installs the
required package opentelemetry-api. Without a provider, nothing is counted.

Names follow OpenTelemetry, and units UCUM. A collector that exports them to Prometheus turns them into the names of
`prometheus.py`, so dashboards and alerts are the same. For the same reason, labels have no prefix.
https://opentelemetry.io/docs/specs/semconv/general/metrics/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from django_throttle.exceptions import needs_extra
from django_throttle.observe import metrics

with needs_extra("opentelemetry", "opentelemetry"):
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter


def name(metric: metrics.Metric) -> str:
    return f"django_throttle.{metric.name.replace(' ', '.')}"


meter: Final = get_meter("django_throttle")
counters: Final = {metric: meter.create_counter(name(metric), metric.unit, metric.text) for metric in metrics.COUNTED}
seconds: Final = meter.create_histogram(
    name(metrics.SECONDS),
    metrics.SECONDS.unit,
    metrics.SECONDS.text,
    explicit_bucket_boundaries_advisory=metrics.BUCKETS,
)


def callback(read: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return the callback of an observable instrument for a function that reads the current figure."""
    return lambda _: (Observation(read()),)


for metric, read in ((metrics.BREAKERS, metrics.open_breakers), (metrics.LEASES, metrics.held_leases)):
    meter.create_observable_up_down_counter(name(metric), [callback(read)], metric.unit, metric.text)

meter.create_observable_gauge(
    name(metrics.UNCONFIRMED),
    [callback(metrics.unconfirmed_seconds)],
    metrics.UNCONFIRMED.unit,
    metrics.UNCONFIRMED.text,
)


def series(metric: metrics.Metric, *values: str) -> metrics.Add:
    return partial(counters[metric].add, attributes=dict(zip(metric.labels, values, strict=True)))


counts: Final = metrics.Counts("opentelemetry", series, seconds.record)
count: Final = counts.count
