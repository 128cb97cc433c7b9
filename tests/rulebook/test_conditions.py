"""The rules of a scope are found as if each rule were looked at, and without looking at each."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle import rulebook
from django_throttle.core import Rule
from django_throttle.facts import Facts
from django_throttle.rulebook import Snapshot, in_force
from django_throttle.rulebook.conditions import Scopes
from tests.inside import book
from tests.servers import quickest

MANY = 10_000
texts = st.text("ab-*?[]!", min_size=1, max_size=6)
# By how they begin, how they end, both, what is in them, and how many letters they have.
KINDS = ("shop{}-*", "*-shop{}", "shop-*-{}", "*shop{}*", "shop{}-?")


@given(st.lists(st.lists(texts, max_size=3), max_size=8), st.text("ab-[]!", max_size=6))
@example([["ab*ba"], ["*aa*a"]], "aba")
def test_they_are_those_that_each_by_itself_would_cover(patterns: list[list[str]], scope: str) -> None:
    each = [
        number
        for number, texts in enumerate(patterns)
        if any(text == scope or fnmatchcase(scope, text) for text in texts)
    ]
    assert Scopes(patterns).find(scope) == each


def test_a_scope_never_seen_before_costs_little_among_ten_thousand() -> None:
    snapshot = Snapshot(
        [Rule(f"rule {at}", "100/min", scopes=(KINDS[at % len(KINDS)].format(at),)) for at in range(MANY)]
    )
    numbers = count()
    who: Any = None  # nobody is asked who calls where no rule covers it

    def match() -> None:
        assert snapshot.match(Facts(f"other-{next(numbers)}", ("request",), who)) == ()

    began = time.process_time()
    match()
    first = time.process_time() - began
    seconds = quickest(match)
    print(f"the first {first * 1000:.2f} ms, any other {seconds * 1000:.3f} ms")
    assert first < 0.05
    assert seconds < 0.001


def test_nobody_waits_for_rules_that_are_being_prepared(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "1/min"}}, "DATABASE_RULES": False}
    waits: list[bool] = []

    def prepare(*args: Any, **kwargs: Any) -> Snapshot:
        waits.append(book().lock.locked())
        return Snapshot(*args, **kwargs)

    monkeypatch.setattr(in_force, "Snapshot", prepare)
    rulebook.refresh()
    assert waits == [False]


def test_those_of_settings_are_read_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {"api": {"rate": "1/min"}}, "DATABASE_RULES": False}
    rulebook.refresh()
    monkeypatch.setattr(Rule, "from_options", None)
    assert [rule.name for rule in rulebook.refresh().rules] == ["api"]
