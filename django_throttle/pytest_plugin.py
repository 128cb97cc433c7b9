"""Fixtures for pytest, which finds them by itself; a test that asks for none of them is not touched.

Nothing of Django is imported before a test asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django_throttle.stores import MemoryStore
    from django_throttle.testing import FrozenClock


@pytest.fixture
def throttle_clock() -> FrozenClock:
    """The clock of throttle_store: it stands still until ``tick(seconds)`` or ``move_to(moment)``."""
    from django_throttle.testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def throttle_store(throttle_clock: FrozenClock) -> Iterator[MemoryStore]:
    """An empty store for this test, in place of the one of the settings; the rules stay as they are."""
    from django_throttle.stores import MemoryStore
    from django_throttle.testing.rules import counting_in

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
