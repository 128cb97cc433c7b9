"""A rule that is said to refuse before another one does so, whatever its algorithm."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import Limiter
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import stricter
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock

AMOUNTS: dict[str, list[Any]] = {"rate": ["2/2s", "3/6s", "4/4s", "20/min", "61/min"]}
CHOICES: dict[str, list[Any]] = {
    "burst": [None, 2, 9],
    "refill": ["continuous", "interval"],
    "resolution": [1, 4],
    "strict": [False, True],
    "limit": [2, 3],
}


def rules_of(algorithm: str) -> list[Rule]:
    """Rules of each combination of amounts and options that the algorithm has."""
    takes = ALGORITHMS[algorithm].takes
    options = {name: values for name, values in CHOICES.items() if name in takes}
    if not ALGORITHMS[algorithm].holds:
        options |= AMOUNTS
    rules = []
    for values in product(*options.values()):
        given = {name: value for name, value in zip(options, values, strict=True) if value is not None}
        try:
            rules.append(Rule(f"rule {(100 - 37 * len(rules)) % 101}", algorithm=algorithm, **given))
        except InvalidRule:
            continue
    return rules


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_rules_that_refuse_first_are_said_to(algorithm: str) -> None:
    chance, rules = random.Random(7), rules_of(algorithm)
    pairs = [(one, other) for one, other in product(rules, rules) if one is not other]
    found = [(strict, loose) for strict, loose in pairs if stricter(Snapshot([strict, loose]), loose)]
    assert 0 < len(found) < len(pairs)
    if ALGORITHMS[algorithm].is_damper:  # no store decides it
        return
    for strict, loose in chance.sample(found, min(40, len(found))):
        clock = FrozenClock()
        clock.to(chance.random() * 60)
        limiter = Limiter([strict, loose], MemoryStore(clock))
        for _ in range(400):
            clock.step(chance.choice((0.0, 0.01, 0.3, 1.0, 1.0, 7.3)))
            outcomes = {outcome.rule: outcome for outcome in limiter.acquire("user:1").outcomes}
            assert outcomes[loose.name].allowed or not outcomes[strict.name].allowed, (strict, loose)


def test_a_damper_is_compared_by_its_speed_alone() -> None:
    slow, fast = (Rule(rate, rate, algorithm="damper") for rate in ("15/min", "1/s"))
    assert stricter(Snapshot([slow, fast]), fast) == slow
    assert stricter(Snapshot([slow, fast]), slow) is None


@pytest.mark.parametrize("algorithm", [name for name, row in ALGORITHMS.items() if row.is_bucket])
def test_a_bucket_is_compared_by_its_speed_and_its_size(algorithm: str) -> None:
    small, large, slow = (
        Rule(name, rate, algorithm=algorithm, burst=burst)
        for name, rate, burst in (("small", "10/min", 5), ("large", "10/min", 50), ("slow", "100/h", 5))
    )
    assert stricter(Snapshot([small, large]), large) == small
    assert stricter(Snapshot([small, large]), small) is None
    assert stricter(Snapshot([small, slow]), small) == slow


@pytest.mark.parametrize(
    ("strict", "loose"),
    [
        ({"rate": "1/s", "resolution": 4}, {"rate": "100/min", "resolution": 4}),
        ({"rate": "1/s", "strict": True}, {"rate": "100/min", "strict": True}),
        ({"rate": "1/s"}, {"rate": "60/min"}),
        ({"rate": "4/min", "enforce_at": 2}, {"rate": "5/min"}),
        ({"rate": "3/7s"}, {"rate": "100/min"}),
    ],
)
def test_nothing_is_said_where_windows_may_lie_badly(strict: dict[str, Any], loose: dict[str, Any]) -> None:
    one, other = Rule("a", **strict), Rule("b", **loose)
    assert stricter(Snapshot([one, other]), other) is None
