"""Who is told of a refusal, and of one that a rule only recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_throttle import observe
from django_throttle.exceptions import InvalidCost
from django_throttle.facts import Facts
from django_throttle.limiter import adecide, decide
from django_throttle.signals import shadowed, throttled
from django_throttle.stores.complaints import Complaints


class Somebody:
    def ident(self, key: str) -> str:
        return "somebody"


FACTS = Facts("any", ("request",), Somebody())


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "_complaints", Complaints())
    observe._counts.clear()


@pytest.fixture
def told() -> Iterator[list[str]]:
    heard: list[str] = []

    def hear(sender: object, signal: Any, facts: Facts, decision: Any, **_: object) -> None:
        assert facts is FACTS
        heard.append("throttled" if signal is throttled else "shadowed")

    throttled.connect(hear)
    shadowed.connect(hear)
    yield heard
    throttled.disconnect(hear)
    shadowed.disconnect(hear)


def in_force(settings: Any, **options: Any) -> None:
    rule = {"rate": "2/hour", "key": "everyone", **options}
    settings.DJANGO_THROTTLE = {"RULES": {"api": rule}, "AGENT": False, "DATABASE_RULES": False}


def test_a_refusal_is_signalled(settings: Any, told: list[str]) -> None:
    in_force(settings)
    assert [decide(FACTS).allowed for _ in range(4)] == [True, True, False, False]
    assert told == ["throttled"] * 2


async def test_and_so_it_is_on_an_event_loop(settings: Any, told: list[str]) -> None:
    in_force(settings)
    assert [(await adecide(FACTS)).allowed for _ in range(3)] == [True, True, False]
    assert told == ["throttled"]


def test_a_shadow_is_signalled_and_logged_once_a_minute(
    settings: Any, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    in_force(settings, action="shadow")
    with caplog.at_level(logging.WARNING, logger="django_throttle"):
        assert all(decide(FACTS).allowed for _ in range(5))
    assert told == ["shadowed"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "rule 'api' only records; calls it would have refused since this was last said: 1"
    ]


async def test_a_shadow_is_signalled_on_an_event_loop(settings: Any, told: list[str]) -> None:
    in_force(settings, action="shadow")
    assert [(await adecide(FACTS)).allowed for _ in range(3)] == [True] * 3
    assert told == ["shadowed"]


@pytest.mark.parametrize("cost", [-1, 1.5, True, "2", None, 2**63, float("nan")])
def test_no_door_can_charge_a_cost_that_makes_no_sense(cost: Any) -> None:
    with pytest.raises(InvalidCost):
        Facts("any", ("request",), Somebody(), cost)
