"""Options of a rule: which there are, how they are read and how they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from django_throttle.core import Rule
from django_throttle.core.rule import OPTIONS
from django_throttle.exceptions import InvalidRule
from tests.strategies import rules


@pytest.mark.parametrize(
    ("mistyped", "meant"), [("algoritm", "algorithm"), ("scope", "scopes"), ("bursts", "burst"), ("limits", "limit")]
)
def test_an_unknown_option_is_refused_with_the_nearest_one(mistyped: str, meant: str) -> None:
    with pytest.raises(InvalidRule, match=f"no option '{mistyped}'; did you mean '{meant}'"):
        Rule.from_options("api", {"rate": "5/min", mistyped: 1})


@pytest.mark.parametrize("options", [None, "10/min", ["rate"], 5])
def test_options_are_a_mapping(options: Any) -> None:
    with pytest.raises(InvalidRule, match="options must be a dictionary such as"):
        Rule.from_options("api", options)


@pytest.mark.parametrize("hidden", ["id", "plan", "name", "_set"])
def test_what_is_derived_cannot_be_given(hidden: str) -> None:
    assert hidden not in OPTIONS
    with pytest.raises(InvalidRule, match="no option"):
        Rule.from_options("api", {"rate": "5/min", hidden: "x"})


@given(rules())
def test_options_round_trip_through_json(rule: Rule) -> None:
    options = json.loads(json.dumps(rule.as_options()))
    again = Rule.from_options(rule.name, options)
    assert again == rule and again.id == rule.id and again.plan == rule.plan


def test_lists_are_tidied() -> None:
    rule = Rule("api", "10/min", methods=["post", "GET", "Post"], warn_at=[1, 0.8, 0.8], count_on=(403, 401, 403))
    assert (rule.methods, rule.warn_at, rule.count_on) == (("POST", "GET"), (0.8, 1.0), (401, 403))
    assert rule == Rule("api", "10/min", methods=("POST", "GET"), warn_at=(0.8, 1), count_on=(401, 403))
    assert Rule("api", "10/min", audience=["staff", "staff"]).audience == ("staff",)


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert Rule("api", "100/min").as_options() == {"rate": "100/min"}
    cap: dict[str, Any] = {"limit": 5, "algorithm": "concurrency"}
    assert Rule("cap", **cap).as_options() == cap
