"""Metrics for OpenTelemetry: the same figures as `prometheus.py` has, by whichever provider the site sets.

Enabled by ``HOOKS = ["django_throttle.contrib.opentelemetry.count"]``; needs opentelemetry-api, which the extra
``opentelemetry`` brings. Without a provider it counts nothing, and costs next to nothing.

Names are as OpenTelemetry writes them, units as UCUM has them. A collector that writes them to Prometheus makes of
them the names that `prometheus.py` has, so that dashboards and alerts are the same; labels are plain for that reason.
https://opentelemetry.io/docs/specs/semconv/general/metrics/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
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

with needs_extra("opentelemetry", "opentelemetry"):
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter


def name(metric: Metric) -> str:
    return f"django_throttle.{metric.name.replace(' ', '.')}"


meter: Final = get_meter("django_throttle")
counters: Final = {metric: meter.create_counter(name(metric), metric.unit, metric.text) for metric in COUNTED}
seconds: Final = meter.create_histogram(
    name(SECONDS), SECONDS.unit, SECONDS.text, explicit_bucket_boundaries_advisory=BUCKETS
)


def observed(ask: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """What a reader calls for the figure of this moment."""
    return lambda _: (Observation(ask()),)


for metric, ask in ((BREAKERS, open_breakers), (LEASES, held_leases)):
    meter.create_observable_up_down_counter(name(metric), [observed(ask)], metric.unit, metric.text)

meter.create_observable_gauge(name(UNCONFIRMED), [observed(unconfirmed_seconds)], UNCONFIRMED.unit, UNCONFIRMED.text)


def series(metric: Metric, *values: str) -> Add:
    return partial(counters[metric].add, attributes=dict(zip(metric.labels, values, strict=True)))


counts: Final = Counts("opentelemetry", series, seconds.record)
count: Final = counts.count
