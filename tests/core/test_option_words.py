"""What a description says of the options of a rule."""

from __future__ import annotations

import pytest

from django_throttle.core import Rule
from django_throttle.core.option_words import UNITS, in_percent, say_scopes
from django_throttle.core.options import MEASURED, table

ROWS = table(Rule)
WORDS = [
    ("scopes", ("*",), ""),
    ("scopes", ("api",), "on api"),
    ("scopes", ("api", "chat"), "on api and chat together"),
    ("scopes", ("api-?",), "on api-? together"),
    ("methods", ("GET", "POST"), "only GET, POST and HEAD"),
    ("audience", ("staff", "group:editors"), "only for staff and the group editors"),
    ("reserve", 2000, "2,000 reserved beforehand"),
    ("reserve", "mean", "the usual reserved beforehand"),
    ("reserve", "shop.limits.rows", "as much reserved beforehand as shop.limits.rows says"),
    ("cost", 3, "each counting 3"),
    ("cost", "shop.limits.cost", "each counting as much as shop.limits.cost says"),
    ("count_on", (401, 403), "counting only answers of status 401 and 403"),
    ("refund_on", ("304", "cancelled"), "not counting what ends as 304 and cancelled"),
    ("warn_at", (0.8, 1.0), "warned of at 80 % and 100 %"),
    ("enforce_at", 2.5, "tolerated up to 2.5 times as much"),
    ("on_store_failure", "deny", "refused while the store is away"),
    ("on_store_failure", "local", ""),
]


@pytest.mark.parametrize(("name", "value", "words"), WORDS)
def test_an_option_in_words(name: str, value: object, words: str) -> None:
    assert ROWS[name].describe(value) == words


def test_units_and_scopes_in_words() -> None:
    assert set(MEASURED) < set(UNITS) and all(pattern.startswith("{count:,} ") for _, pattern in [*UNITS.values()][1:])
    assert (say_scopes(("api", "*")), say_scopes(("api", "api", "chat"))) == ("everywhere", "api and chat")
    assert in_percent(250) == "; 250 % is 2.5"
