"""Fixtures for pytest, which finds them by itself, and a test run that leaves the site's Redis alone.

Nothing of Django is imported before a test asks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from django_throttle import detect_test_run

if TYPE_CHECKING:
    from django_throttle.stores import MemoryStore
    from django_throttle.testing import FrozenClock


OPTION = "throttle_redis"
_before = pytest.StashKey[bool | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The off switch, for pytest.ini, pyproject.toml and ``-o``."""
    parser.addini(OPTION, "Count in the Redis that DJANGO_THROTTLE names, not in memory.", type="bool", default=False)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, Any, Any]:
    """Before pytest-django sets the site up, which may ask for the store at once."""
    _declare(early_config)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Where it was not loaded in time for the above, now."""
    _declare(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A run inside another one leaves that as it was."""
    detect_test_run.declare(config.stash.get(_before, None))


def _declare(config: pytest.Config) -> None:
    before = detect_test_run.declare(not config.getini(OPTION))
    config.stash.setdefault(_before, before)


@pytest.fixture
def throttle_unlimited() -> Iterator[None]:
    """No rule limits this test, except the rules that it puts in force itself."""
    from django.conf import settings
    from django.test import override_settings

    with override_settings(DJANGO_THROTTLE={**getattr(settings, "DJANGO_THROTTLE", {}), "TESTS": "unlimited"}):
        yield


@pytest.fixture
def throttle_clock() -> FrozenClock:
    """The clock of throttle_store: it stands still until ``tick(seconds)`` or ``move_to(moment)``."""
    from django_throttle.testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def throttle_store(throttle_clock: FrozenClock) -> Iterator[MemoryStore]:
    """An empty store for this test, in place of the one of the settings; the rules stay as they are."""
    from django_throttle.stores import MemoryStore
    from django_throttle.testing import counting_in

    with counting_in(MemoryStore(throttle_clock)) as store:
        yield store


@pytest.fixture
def throttle_rules(throttle_store: MemoryStore) -> Iterator[Callable[..., None]]:
    """``throttle_rules({"api": {"rate": "2/min"}})``: these rules, and no others, until the test ends.

    Called again it replaces them; with ``merge=True`` it adds to them.
    """
    from django_throttle.testing import override_rules

    def put_in_force(rules: Any, *, merge: bool = False) -> None:
        stack.enter_context(override_rules(rules, merge=merge, store=throttle_store))

    with ExitStack() as stack:
        yield put_in_force
