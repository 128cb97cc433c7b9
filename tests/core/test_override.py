"""An override says whom it is for and what it does, or is refused, naming what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.core import Override, Rate
from django_throttle.core.overrides import KINDS, describe_effect
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.exceptions import InvalidOverride

USER: dict[str, Any] = {"subject": "user:1"}
RATE = Rate(5, 60)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"subject": "shoe:1", "effect": "block"}, "kind"),
    ({"subject": "1", "effect": "block"}, "kind"),
    ({"subject": "user:", "effect": "block"}, "value"),
    ({"subject": "user: 1", "effect": "block"}, "value"),
    ({"subject": "user:a\nb", "effect": "block"}, "value"),
    ({"subject": "tenant:" + "x" * 301, "effect": "block"}, "value"),
    ({"subject": "ip:203.0.113.256", "effect": "block"}, "value"),
    ({"subject": "ip:203.0.113.9/24", "effect": "block"}, "value"),
    ({"subject": "ip:somewhere", "effect": "block"}, "value"),
    ({**USER, "effect": "scold"}, "effect"),
    ({**USER, "effect": "block", "rules": ()}, "rules"),
    ({**USER, "effect": "block", "rules": "api"}, "rules"),
    ({**USER, "effect": "block", "rules": ("a,b",)}, "rules"),
    ({**USER, "effect": "multiply"}, "factor"),
    *(
        ({**USER, "effect": "multiply", "factor": factor}, "factor")
        for factor in (0, -1, float("nan"), float("inf"), 1_000_001, True, "2")
    ),
    ({**USER, "effect": "block", "factor": 2}, "factor"),
    ({**USER, "effect": "multiply", "factor": 2, "rates": (RATE,)}, "rate"),
    ({**USER, "effect": "exempt", "limit": 5}, "limit"),
    ({**USER, "effect": "replace"}, "rate"),
    ({**USER, "effect": "replace", "rates": (RATE, Rate(6, 60))}, "rate"),
    ({**USER, "effect": "replace", "rates": tuple(Rate(1, window) for window in range(1, 12))}, "rate"),
    *(({**USER, "effect": "replace", "limit": limit}, "limit") for limit in (0, -1, MAX_LIMIT + 1, 2.0, True)),
]


@pytest.mark.parametrize(("options", "option"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_what_makes_no_sense_is_refused(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOverride) as caught:
        Override(**options)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("rules", "named", "others"),
    [
        (("*",), ["api", "", "a,b", "[x]"], []),
        (("api",), ["api"], ["API", "apis", "ap"]),
        (("api*", "chat"), ["api", "api:search", "chat"], ["chat:x", "my-api"]),
        (("ap?",), ["api"], ["ap", "apis"]),
        (("[x]",), ["[x]", "x"], ["y"]),  # a name is itself, whatever signs are in it
    ],
)
def test_the_rules_that_it_names(rules: tuple[str, ...], named: list[str], others: list[str]) -> None:
    override = Override(**USER, effect="block", rules=rules)
    assert [name for name in named if not override.names(name)] == []
    assert [name for name in others if override.names(name)] == []


def test_it_lasts_until_its_moment_and_not_a_tick_longer() -> None:
    override = Override(**USER, effect="block", until=100.0)
    assert override.lasts(99.999999)
    assert not override.lasts(100.0)
    assert Override(**USER, effect="block").lasts(float("inf"))


def test_the_most_specific_goes_first_then_the_strongest_then_the_latest() -> None:
    wanted = [
        Override(subject="api_key:x", effect="exempt"),
        Override(subject="user:1", effect="block", number=1),
        Override(subject="user:1", effect="replace", limit=1, number=3),
        Override(subject="user:1", effect="multiply", factor=1, number=9),
        Override(subject="user:1", effect="multiply", factor=1, number=8),
        Override(subject="user:1", effect="exempt", number=7),
        Override(subject="ip:203.0.113.9", effect="exempt"),
        Override(subject="ip:203.0.113.0/24", effect="exempt"),
        Override(subject="ip:203.0.0.0/16", effect="block"),
        Override(subject="ip:2001:db8::/64", effect="exempt"),
        Override(subject="ip:2001:db8::/48", effect="block"),
        Override(subject="tenant:acme", effect="block"),
        Override(subject="group:staff", effect="block"),
    ]
    backwards = wanted[::-1]
    assert sorted(backwards, key=lambda override: override.rank) == wanted
    assert {override.kind for override in wanted} == set(KINDS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effect": "block"}, "blocked"),
        ({"effect": "block", "rules": ("api", "chat")}, "blocked from what api and chat covers"),
        ({"effect": "exempt", "rules": ("api", "*")}, "exempt from every rule"),
        ({"effect": "multiply", "factor": 2.0, "rules": ("api",)}, "2 × the limit of api"),
        ({"effect": "multiply", "factor": 0.29}, "0.29 × the limit of every rule"),
        ({"effect": "replace", "rates": (RATE, Rate(1, 1)), "limit": 1000}, "5/min, 1/s and 1,000 at once instead of"),
    ],
)
def test_it_says_what_it_does(options: dict[str, Any], words: str) -> None:
    assert describe_effect(Override(**USER, **options)).startswith(words)
