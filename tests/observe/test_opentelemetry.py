"""OpenTelemetry gets the figures that Prometheus gets, and by way of a collector the same names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import need_package

ROOT = Path(__file__).parents[2]
# A provider can be set once in a process, so each of these sites is one of its own; what it prints is JSON.
SITE = """
import json
from django.conf import settings

settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={
    "HOOKS": ["django_throttle.observe.opentelemetry.count", "django_throttle.observe.prometheus.count"],
    "DATABASE_RULES": False, "AGENT": False,
    "RULES": {"api": {"rate": "3/hour", "key": "everyone"},
              "new": {"rate": "2/hour", "key": "everyone", "action": "shadow"},
              "slots": {"limit": 9, "algorithm": "concurrency", "events": ["connection"], "key": "everyone"}},
})
import django
django.setup()
from django_throttle import observe
from django_throttle.call_facts import Facts
from django_throttle.exceptions import Cause
from django_throttle.limiter import decide
from django_throttle.meter import Meter
from django_throttle.signals import costly
from tests.observe.conftest import FACTS, decided


def use():
    for _ in range(5):
        decide(FACTS)
    for _ in range(2):
        decide(Facts("any", ("connection",), FACTS.who))
    observe.tell(FACTS, decided(True)._replace(degraded=True, cause=Cause.POOL), 0.002)
    observe.tell_dropped("receive", 3)
    costly.send(sender=None, scope="search", meter=Meter(), above=("queries",))

"""
READ = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
use()
set_meter_provider(MeterProvider([reader]))
use()
(resource,) = reader.get_metrics_data().resource_metrics
(scope,) = resource.scope_metrics
print(json.dumps([scope.scope.name, [json.loads(metric.to_json()) for metric in scope.metrics]]))
"""


def site(code: str) -> Any:
    need_package("opentelemetry")
    need_package("opentelemetry.sdk")
    command = [sys.executable, "-W", "ignore", "-c", SITE + code]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.usefixtures("servers")
def test_the_provider_gets_all_that_is_counted_once_it_is_set() -> None:
    scope, metrics = site(READ)
    assert scope == "django_throttle"
    found = {metric["name"].removeprefix("django_throttle."): metric for metric in metrics}
    points = {
        name: {tuple(point["attributes"].values()): point.get("value") for point in metric["data"]["data_points"]}
        for name, metric in found.items()
    }
    assert ("api", "allowed", "within") not in points["decisions"], "those were decided before"
    assert points["decisions"]["api", "refused", "exceeded"] == 5
    assert points["store.failures"] == {("pool",): 1}
    assert points["layer.drops"] == {("receive",): 3}
    assert points["costly"] == {("search",): 1}
    assert points["leases.held"] == {(): 4}
    assert points["breakers.open"] == {(): 0}
    assert points["rules.unconfirmed"] == {(): 0.0}, "they are of settings alone"
    (times,) = found["decision"]["data"]["data_points"]
    assert (times["count"], found["decision"]["unit"]) == (8, "s")
    assert times["explicit_bounds"][:3] == [0.0002, 0.0005, 0.001], "those of OpenTelemetry are for milliseconds"
