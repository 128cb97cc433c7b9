"""What is counted, whichever library keeps it: once for each outcome, under labels that no caller can make grow."""

from __future__ import annotations

from collections import Counter

import pytest

from django_throttle.core.decision import Outcome, conclude
from django_throttle.meter import Meter
from django_throttle.observe import metrics
from django_throttle.observe.metrics import COSTLY, DECISIONS, Add, Counts, Metric
from django_throttle.observe.reports import Report
from django_throttle.signals import costly
from tests.observe.conftest import FACTS, decided


class Library:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, ...]] = Counter()
        self.asked: Counter[tuple[str, ...]] = Counter()
        self.seconds: list[float] = []
        self.counts = Counts("test", self.series, self.seconds.append)

    def series(self, metric: Metric, *values: str) -> Add:
        assert len(values) == len(metric.labels)
        key = (metric.name, *values)
        self.asked[key] += 1
        return lambda more: self.counted.update({key: more})


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    for signal in (metrics.costly, metrics.layer_dropped):
        monkeypatch.setattr(signal, "receivers", [])
        signal.sender_receivers_cache.clear()
    return Library()


def test_each_outcome_is_counted_and_its_series_asked_for_once(library: Library) -> None:
    for _ in range(3):
        library.counts.count(Report(FACTS, decided(True, False), 0.002))
    one, two = (DECISIONS.name, "one", "allowed", "within"), (DECISIONS.name, "two", "refused", "exceeded")
    assert library.counted == {one: 3, two: 3}
    assert library.asked == {one: 1, two: 1}
    assert library.seconds == [0.002] * 3


def test_rules_and_scopes_without_end_share_a_name(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_RULES", 10)
    for number in (*range(50), 0):
        library.counts.count(Report(FACTS, conclude((Outcome(f"{number}", "user:1", True, 1, 0, 0.0, 0.0),)), 0.0))
        costly.send(sender=None, scope=f"{number}", meter=Meter(), above=("queries",))
    assert library.counted[DECISIONS.name, "(others)", "allowed", "within"] == 40
    assert library.counted[COSTLY.name, "(others)"] == 40
    assert library.counted[DECISIONS.name, "0", "allowed", "within"] == library.counted[COSTLY.name, "0"] == 2
    assert len(library.counts.known) == len(library.counts.rules) == len(library.counts.scopes) == 10
