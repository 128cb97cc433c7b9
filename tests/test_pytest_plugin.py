"""The fixtures for pytest: no test sees another, and nothing of Django is touched before one asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_throttle import rulebook
from django_throttle.limiter import decide
from django_throttle.stores import MemoryStore, get_store, pin
from django_throttle.testing import FrozenClock
from tests.observe.conftest import FACTS

Put = Callable[..., None]
ONE = {"one": {"rate": "2/hour", "key": "everyone", "algorithm": "fixed_window"}}
OTHER = {"other": {"rate": "5/hour", "key": "everyone"}}


@pytest.mark.parametrize("turn", [1, 2])
class TestIsolation:
    def test_each_test_has_a_store_of_its_own(
        self, turn: int, throttle_store: MemoryStore, throttle_clock: FrozenClock, throttle_rules: Put
    ) -> None:
        throttle_rules(ONE)
        assert get_store() is throttle_store
        assert throttle_store.clock is throttle_clock
        assert [decide(FACTS).allowed for _ in range(3)] == [True, True, False]
        throttle_clock.tick(3600)
        assert decide(FACTS).allowed

    def test_without_them_nothing_is_changed(self, turn: int) -> None:
        assert pin(None) is None
        assert rulebook.current().by_name("one") is None


def test_the_store_alone_leaves_the_rules_as_they_are(throttle_store: MemoryStore) -> None:
    assert rulebook.current().by_name("api") is not None, "the demo site's"
    assert get_store() is throttle_store


def test_rules_may_be_replaced_and_added_to(throttle_rules: Put) -> None:
    throttle_rules(ONE)
    assert decide(FACTS).allowed
    throttle_rules(OTHER, merge=True)
    assert [rule.name for rule in rulebook.current().rules] == ["one", "other"]
    assert [decide(FACTS).allowed for _ in range(2)] == [True, False], "on the same store"
    throttle_rules(OTHER)
    assert [rule.name for rule in rulebook.current().rules] == ["other"]
