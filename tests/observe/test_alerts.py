"""docs/alerts.yml and docs/grafana.json: what they ask for is what a site has, and each alert fires when it should."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_throttle import observe
from django_throttle.identity.call import Call
from django_throttle.limiter import decide
from tests.observe.conftest import CALL
from tests.pages import DOCS

ALERTS, DASHBOARD, PAGE = DOCS / "alerts.yml", DOCS / "grafana.json", DOCS / "howto" / "alerts.rst"
PLAYED = Path(__file__).with_name("alerts.yml")
OF_PROMETHEUS = {"job", "instance"}  # labels that it gives to whatever it scrapes
HOOKS = ["django_throttle.contrib.prometheus.count"]
WORD = re.compile(r"django_throttle_\w+")
SELECTED = re.compile(r"(django_throttle_\w+)\{([^}]*)\}")
LABEL = re.compile(r'(\w+)\s*(=~|=|!=|!~)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")


@pytest.fixture
def promtool(servers: None, need_binary: Callable[[str], str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    binary = need_binary("promtool")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], check=False, capture_output=True, text=True, timeout=60)

    return run


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


urlpatterns = [path("page", page, name="page")]


@pytest.fixture
def scrape(
    servers: None, settings: Any, enforce: Callable[..., None]
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Series of a site by name and labels, after calls allowed, refused, shadowed, costly, or without Redis."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
    enforce(HOOKS=HOOKS, LOG_COST_ABOVE={"wall_ms": 0.0})
    statuses = [Client().get("/page").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    enforce(HOOKS=HOOKS, action="shadow")
    for _ in range(3):
        decide(CALL)
    enforce(HOOKS=HOOKS, algorithm="concurrency", limit=5, rate=None, events=["connection"])
    decide(Call("any", ("connection",), CALL.caller))
    enforce(HOOKS=HOOKS, REDIS="redis://127.0.0.1:1/0", on_store_failure="deny")
    decide(CALL)
    observe.report_dropped("group_send", 1)
    families = text_string_to_metric_families(generate_latest(REGISTRY).decode())
    samples = (sample for family in families for sample in family.samples)
    return {(one.name, frozenset(one.labels.items())): one.value for one in samples if one.name.startswith("django_")}


def alerts() -> list[Any]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def asked() -> Iterator[str]:
    """Every expression of both files, and what fills the dashboard's variables, as Grafana fills them in."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for variable in dashboard["templating"]["list"][1:]:
        query = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
        what, _, label = query.rpartition(", ")
        found.append(f"sum by ({label}) ({what})")
    filled = {"$__rate_interval": "5m", "$__range": "10m", "$job": ".*", "$rule": ".*"}
    for expression in found:
        yield re.sub(r"\$\w+", lambda variable: filled[variable[0]], expression)
    yield from (alert["expr"] for alert in alerts())


def test_every_metric_and_label_is_one_that_a_site_has(scrape: Any) -> None:
    have: dict[str, dict[str, set[str]]] = {}
    for name, labels in scrape:
        for label, value in labels:
            have.setdefault(name, {}).setdefault(label, set()).add(value)
        have.setdefault(name, {})
    for expression in asked():
        names = set(WORD.findall(expression))
        assert names and names <= have.keys(), expression
        for name, selected in SELECTED.findall(expression):
            for label, operator, value in LABEL.findall(selected):
                assert label in have[name].keys() | OF_PROMETHEUS, (label, expression)
                if operator == "=" and label == "outcome":
                    assert value in have[name][label], (value, expression)
        grouped = {label for labels in GROUPED.findall(expression) for label in labels.split(", ")}
        assert all(grouped <= have[name].keys() | OF_PROMETHEUS for name in names), expression


def test_promtool_reads_the_alerts_and_each_expression(promtool: Any, tmp_path: Path) -> None:
    told = promtool("check", "rules", ALERTS)
    assert told.returncode == 0, told.stdout + told.stderr
    recorded = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(asked())]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    told = promtool("check", "rules", file)
    assert told.returncode == 0, told.stdout + told.stderr


def test_each_alert_fires_when_it_should_and_only_then(promtool: Any, tmp_path: Path) -> None:
    played, told = yaml.safe_load(PLAYED.read_text()), {alert["alert"]: alert for alert in alerts()}
    assert {each["alert"] for each in played} == {*told}
    tests = []
    for each in played:
        alert = told[each["alert"]]
        description = alert["annotations"]["description"]
        ((moment, told_of),) = each["fires"].items()
        fired = [
            {"exp_labels": labels | alert["labels"], "exp_annotations": {"summary": text, "description": description}}
            for text, labels in told_of.items()
        ]
        moments = {moment: fired, **{moment: [] for moment in each.get("quiet", ())}}
        series = {f"django_throttle_{name}": values for name, values in each["series"].items()}
        tests.append(
            {
                "interval": each.get("interval", "1m"),
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": moment, "alertname": each["alert"], "exp_alerts": expected}
                    for moment, expected in moments.items()
                ],
            }
        )
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    ended = promtool("test", "rules", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
