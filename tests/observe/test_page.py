"""docs/reference/observing.rst: the code that it shows does what it says, and its tables are complete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.test import RequestFactory

from django_throttle import observe
from django_throttle.limiter import decide
from tests.observe.conftest import FACTS, decided
from tests.pages import DOCS, shown

_SIGNAL, SETTINGS, METRICS, _OF_ALL, _GUNICORN, _OPENTELEMETRY, HOOK, _OWN = shown("observing")
TEXT = (DOCS / "reference" / "observing.rst").read_text(encoding="utf-8")
counted: list[tuple[str, Any]] = []


def run(code: str, **names: Any) -> dict[str, Any]:
    found = {"__name__": "shown", **names}
    exec(code, found)
    return found


def test_the_metrics_are_served(settings: Any) -> None:
    rules = {"served": {"rate": "1/min", "key": "everyone"}}  # counted by no other test of this process
    settings.DJANGO_THROTTLE = {**run(SETTINGS)["DJANGO_THROTTLE"], "RULES": rules, "AGENT": False}
    decide(FACTS)
    names = run(METRICS)
    response = names["metrics"](RequestFactory().get("/metrics"))
    assert 'django_throttle_decisions_total{outcome="allowed",reason="within",rule="served"} 1.0' in response.text
    for line in response.text.splitlines():
        if line.startswith("# TYPE django_throttle_") and "_created" not in line:
            assert f"``{line.split()[2]}``" in TEXT


def test_a_hook_of_ones_own(settings: Any) -> None:
    counted.clear()
    settings.DJANGO_THROTTLE = {"HOOKS": ["tests.observe.test_page.shown_hook"], "AGENT": False}
    observe.tell(FACTS, decided(True, False), 0.002)
    assert counted == [
        ("throttle.decisions", ["rule:one", "outcome:allowed"]),
        ("throttle.decisions", ["rule:two", "outcome:refused"]),
        ("throttle.seconds", 0.002),
    ]


def note(name: str, value: Any = None, tags: Any = None) -> None:
    counted.append((name, tags or value))


shown_hook = run(HOOK, statsd=SimpleNamespace(increment=note, timing=note))["count"]
