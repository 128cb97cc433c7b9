"""Counters in memory: what a flood of idents makes forgotten."""

from __future__ import annotations

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from django_throttle.stores.counters import Counters
from tests.clock import FrozenClock


def test_what_is_spent_is_forgotten_last_and_only_where_room_is_needed() -> None:
    counters = Counters()
    for number in range(100):
        counters.write(("rule", str(number)), (number,), 1, is_spent=number % 3 == 0)
    counters.write(("login", "a"), (1,), 1, is_spent=False)
    counters.make_room(50)
    assert {ident for _, ident in counters} >= {str(number) for number in range(0, 100, 3)}
    counters.make_room(41)
    assert len(counters) == 10, "there is no room for all of them"
    assert ("login", "a") in counters, "idents of one rule make none of another forgotten"


@pytest.mark.row("A20")
def test_who_is_refused_stays_refused_in_a_flood_of_others(clock: FrozenClock) -> None:
    store = MemoryStore(clock=clock, max_entries=2000)
    limiter = Limiter([Rule("login", "3/h")], store)
    assert [limiter.acquire("user:1").allowed for _ in range(4)] == [True] * 3 + [False]
    for number in range(20_000):
        limiter.acquire(f"flood:{number}")
        clock.step(0.001)
    assert not limiter.acquire("user:1").allowed
