"""Metrics: what was decided, by rule, outcome and reason, for Prometheus and OpenTelemetry; nobody makes them grow."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from django.test import RequestFactory
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from django_throttle.contrib import prometheus
from django_throttle.core.decision import Outcome, combine_outcomes
from django_throttle.costs.meter import Meter
from django_throttle.limiter import decide
from django_throttle.observe import metrics
from django_throttle.observe.metrics import COSTLY, DECISIONS, Add, Counts, Metric
from django_throttle.observe.reports import Report
from django_throttle.signals import costly
from django_throttle.stores import RedisStore, get_store
from tests.observe.conftest import CALL
from tests.pages import DOCS, run, shown
from tests.servers import need_package

ROOT = Path(__file__).parents[2]

PROCESS = """
import os, sys
from django.conf import settings

settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={
    "HOOKS": ["django_throttle.contrib.prometheus.count"], "DATABASE_RULES": False,
    "RULES": {"api": {"rate": "3/hour", "key": "everyone"},
              "slots": {"limit": 9, "algorithm": "concurrency", "events": ["connection"], "key": "everyone"}},
})
import django
django.setup()
from django_throttle import observe
from django_throttle.identity.call import Call
from django_throttle.limiter import decide
from tests.observe.conftest import CALL
from tests.pages import DOCS, run, shown

if sys.argv[1] == "fork" and not os.fork():
    sys.argv[1] = "child"
else:
    for _ in range(2):
        decide(CALL)
for _ in range(3):
    decide(CALL)
    decide(Call("any", ("connection",), CALL.caller))
observe.run_periodic_work()
os.write(1, b"done %d\\n" % os.getpid())
sys.stdin.read()
"""


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"django_throttle_{name}", labels) or 0.0


def series(registry: CollectorRegistry = REGISTRY) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith("django_throttle_")]


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_an_open_breaker_is_shown(scheme: str, settings: Any) -> None:
    hooks = [f"{prometheus.__name__}.count"]
    settings.DJANGO_THROTTLE = {"REDIS": f"{scheme}://127.0.0.1:1/0", "HOOKS": hooks}
    store = get_store()
    assert isinstance(store, RedisStore)
    if scheme == "redis+cluster":
        store.transport._node(("127.0.0.1", 1))  # type: ignore[union-attr]
    (breaker,) = store.transport.breakers
    assert value("breakers_open") == 0
    while not breaker.failed():
        pass
    assert value("breakers_open") == 1
    breaker.succeeded()
    assert value("breakers_open") == 0


@pytest.mark.usefixtures("servers")
def test_in_several_processes_it_adds_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    running = [
        subprocess.Popen([sys.executable, "-c", PROCESS, how], env=environment, stdin=PIPE, stdout=PIPE, text=True)
        for how in ("fork", "alone")
    ]
    pids: list[int] = []
    try:
        for process, lines in zip(running, (2, 1), strict=True):
            assert process.stdout is not None
            for _ in range(lines):
                done, pid = process.stdout.readline().split()
                assert done == "done"
                pids.append(int(pid))
        found = dict(line.rsplit(" ", 1) for line in series(_collected(tmp_path)))
    finally:
        for process in running:
            process.communicate("", timeout=10)
    allowed = found['django_throttle_decisions_total{outcome="allowed",reason="within",rule="api"}']
    refused = found['django_throttle_decisions_total{outcome="refused",reason="exceeded",rule="api"}']
    assert (float(allowed), float(refused)) == (9, 4), "5, 3 and 5 calls under 3/hour in each"
    assert float(found["django_throttle_decision_seconds_count"]) == 13 + 9
    assert float(found["django_throttle_leases_held"]) == 9
    assert float(found["django_throttle_breakers_open"]) == 0
    for pid in pids:
        mark_process_dead(pid, path=str(tmp_path))  # type: ignore[no-untyped-call]
    left = dict(line.rsplit(" ", 1) for line in series(_collected(tmp_path)))
    assert "django_throttle_leases_held" not in left, "who is dead holds nothing"
    assert float(left["django_throttle_decision_seconds_count"]) == 13 + 9


def _collected(folder: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return registry


def test_rules_and_scopes_without_end_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for signal in (metrics.costly, metrics.layer_dropped):
        monkeypatch.setattr(signal, "receivers", [])
        signal.sender_receivers_cache.clear()
    monkeypatch.setattr(metrics, "MAX_LABEL_VALUES", 10)
    counted, asked, seconds = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), list[float]()

    def series(metric: Metric, *values: str) -> Add:
        key = (metric.name, *values)
        asked[key] += 1
        return lambda more: counted.update({key: more})

    counts = Counts("test", series, seconds.append)
    for number in (*range(50), 0):
        counts.count(Report(CALL, combine_outcomes((Outcome(f"{number}", "user:1", True, 1, 0, 0.0, 0.0),)), 0.002))
        costly.send(sender=None, scope=f"{number}", meter=Meter(), above=("queries",))
    assert counted[DECISIONS.name, "(others)", "allowed", "within"] == counted[COSTLY.name, "(others)"] == 40
    assert counted[DECISIONS.name, "0", "allowed", "within"] == counted[COSTLY.name, "0"] == 2
    assert asked[DECISIONS.name, "0", "allowed", "within"] == 1, "a series is looked up once"
    assert seconds == [0.002] * 51
    assert len(counts.series_cache) == len(counts.rules) == len(counts.scopes) == 10


def test_the_metrics_are_served_as_the_page_shows(settings: Any) -> None:
    setup, view, *_ = shown("observing")
    rules = {"served": {"rate": "1/min", "key": "everyone"}}  # counted by no other test of this process
    settings.DJANGO_THROTTLE = {**run(setup)["DJANGO_THROTTLE"], "RULES": rules}
    decide(CALL)
    served = run(view)["metrics"](RequestFactory().get("/metrics")).text
    assert 'django_throttle_decisions_total{outcome="allowed",reason="within",rule="served"} 1.0' in served
    page = (DOCS / "reference" / "observing.rst").read_text(encoding="utf-8")
    names = [line.split()[2] for line in served.splitlines() if line.startswith("# TYPE django_throttle_")]
    assert [name for name in names if "_created" not in name and f"``{name}``" not in page] == []


# A provider can be set once in a process, so each of these sites is one of its own; what it prints is JSON.
SITE = """
import json
from django.conf import settings

settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={
    "HOOKS": ["django_throttle.contrib.opentelemetry.count", "django_throttle.contrib.prometheus.count"],
    "DATABASE_RULES": False,
    "RULES": {"api": {"rate": "3/hour", "key": "everyone"},
              "new": {"rate": "2/hour", "key": "everyone", "action": "shadow"},
              "slots": {"limit": 9, "algorithm": "concurrency", "events": ["connection"], "key": "everyone"}},
})
import django
django.setup()
from django_throttle import observe
from django_throttle.identity.call import Call
from django_throttle.exceptions import Cause
from django_throttle.limiter import decide
from django_throttle.costs.meter import Meter
from django_throttle.signals import costly
from tests.observe.conftest import CALL, decided


def use():
    for _ in range(5):
        decide(CALL)
    for _ in range(2):
        decide(Call("any", ("connection",), CALL.caller))
    observe.report(CALL, decided(True)._replace(degraded=True, cause=Cause.POOL), 0.002)
    observe.report_dropped("receive", 3)
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
