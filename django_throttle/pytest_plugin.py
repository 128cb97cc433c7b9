"""Fixtures for pytest, which loads this module by itself. A test run leaves the site's Redis alone.

Django is not imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from django_throttle import detect_test_run

if TYPE_CHECKING:
    from django_throttle.stores import MemoryStore
    from django_throttle.testing import FrozenClock, Rules


OPTION = "throttle_redis"
_before = pytest.StashKey[bool | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that counts in Redis."""
    parser.addini(OPTION, "Count in the Redis that DJANGO_THROTTLE names, not in memory.", type="bool", default=False)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, Any, Any]:
    """Declare the test run before pytest-django sets the site up, which may ask for the store at once."""
    _declare(early_config)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the test run if this module was loaded too late for the hook above."""
    _declare(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the declaration of an outer test run."""
    detect_test_run.declare(config.stash.get(_before, None))


def _declare(config: pytest.Config) -> None:
    before = detect_test_run.declare(not config.getini(OPTION))
    config.stash.setdefault(_before, before)


@pytest.fixture
def throttle_unlimited() -> Iterator[None]:
    """Switch all limits off for this test, except for rules that it puts in force itself."""
    from django.conf import settings
    from django.test import override_settings

    with override_settings(DJANGO_THROTTLE={**getattr(settings, "DJANGO_THROTTLE", {}), "TESTS": "unlimited"}):
        yield


@pytest.fixture
def throttle_clock() -> FrozenClock:
    """Return the clock of ``throttle_store``, which ``tick(seconds)`` and ``move_to(moment)`` move."""
    from django_throttle.testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def throttle_store(throttle_clock: FrozenClock) -> Iterator[MemoryStore]:
    """Count in an empty store during this test, under the current rules."""
    from django_throttle.stores import MemoryStore
    from django_throttle.testing import counting_in

    with counting_in(MemoryStore(throttle_clock)) as store:
        yield store


@pytest.fixture
def throttle_rules(throttle_store: MemoryStore) -> Iterator[Callable[..., None]]:
    """Return a function that puts rules in force until the test ends: ``throttle_rules({"api": {"rate": "2/min"}})``.

    Another call replaces them. With ``merge=True`` it adds to the current rules.
    """
    from django_throttle.testing import override_rules

    def put_in_force(rules: Rules, *, merge: bool = False) -> None:
        stack.enter_context(override_rules(rules, merge=merge, store=throttle_store))

    with ExitStack() as stack:
        yield put_in_force
