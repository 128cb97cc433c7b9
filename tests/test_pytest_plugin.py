"""The fixtures for pytest: no test sees another, and nothing of Django is touched before one asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from django_throttle import rulebook
from django_throttle.exceptions import InvalidRule
from django_throttle.limiter import adecide, decide
from django_throttle.stores import MemoryStore, get_store, pin
from django_throttle.testing import FrozenClock
from tests.observe.conftest import FACTS

ROOT = Path(__file__).parents[1]
Put = Callable[..., None]
ONE = {"one": {"rate": "2/hour", "key": "everyone", "algorithm": "fixed_window"}}
OTHER = {"other": {"rate": "5/hour", "key": "everyone"}}

# A plugin that needed Django, or its settings, would fail here: there are none.
UNTOUCHED = """
import sys

def test_nothing_is_imported():
    assert "django_throttle.pytest_plugin" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] == "django"]
"""
UNCONFIGURED = """
def test_the_engine_alone(throttle_store, throttle_clock, throttle_rules):
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.testing import assert_throttled

    limiter = Limiter([Rule("a", "10000/hour", algorithm="fixed_window")], throttle_store)
    assert limiter.acquire("user:1", cost=9_999).allowed
    assert_throttled(lambda: limiter.acquire("user:1"), after=1, rule="a")
    throttle_clock.tick(3600)
    assert limiter.acquire("user:1").allowed
    throttle_rules({"b": {"rate": "1/s"}})
"""


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

    async def test_on_a_loop_too(self, turn: int, throttle_rules: Put) -> None:
        throttle_rules(ONE)
        assert [(await adecide(FACTS)).allowed for _ in range(3)] == [True, True, False]

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


def test_a_rule_that_makes_no_sense_is_refused(throttle_rules: Put) -> None:
    with pytest.raises(InvalidRule):
        throttle_rules({"one": {"rat": "1/s"}})


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("code", [UNTOUCHED, UNCONFIGURED], ids=["untouched", "unconfigured"])
def test_without_django_s_settings(code: str, tmp_path: Path) -> None:
    """In a pytest of its own, without pytest-django."""
    (tmp_path / "test_it.py").write_text(code, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "django_throttle.pytest_plugin"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
