"""A publisher that was refused is refused again to any group, and the store hears nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle.core import Outcome
from django_throttle.core.decision import Reason
from django_throttle.publishing import GROUP_KEY
from django_throttle.publishing.groups import group_ident, members
from django_throttle.stores import RedisStore
from django_throttle.stores.denials import Denials
from tests.clock import FrozenClock
from tests.inside import commands_to
from tests.publishing.conftest import refusal, refusal_sync
from tests.sockets.guarded import Live, live_enforcer

FIVE = {"rate": "5/h", "events": ["publish"], "key": "user", "algorithm": "gcra"}
ROOMS = {"rate": "1000/h", "events": ["publish"], "key": GROUP_KEY, "algorithm": "gcra"}


@pytest.fixture
def enforce(redis_url: str, settings: Any, clock: FrozenClock) -> Live:
    """Puts rules in force on a store that remembers refusals by the test's clock."""

    def enforce(**given: Any) -> RedisStore:
        store = live_enforcer(redis_url, settings)(**given)
        store.denials = Denials(clock)
        return store

    return enforce


async def used_up(refuse: Any = refusal, publisher: Any = "user:1") -> None:
    """The budget of five; the sixth is refused."""
    assert [bool(await refuse("room.0", publisher)) for _ in range(6)] == [False] * 5 + [True]


@pytest.mark.parametrize("refuse", [refusal, refusal_sync], ids=["asynchronous", "synchronous"])
async def test_to_any_group_nothing_is_asked_for_a_second(
    enforce: Live, monkeypatch: Any, clock: FrozenClock, refuse: Any
) -> None:
    store = enforce(posts=FIVE, rooms=ROOMS)
    await used_up(refuse)
    asked = commands_to(store, monkeypatch)
    clock.tick(0.99)
    again = [await other(f"room.{number}") for number in range(5) for other in (refusal, refusal_sync)]
    assert (all(again), asked) == (True, [])
    first = again[0].decision
    assert (first.rule, again[0].group, again[0].members) == ("posts", "room.0", 0)
    assert 700 < first.retry_after <= 719.5
    assert await refuse("room.0", "user:2") is None, "another one is asked about"
    clock.tick(0.02)
    asked.clear()
    assert await refuse("room.1") and asked


def slowly(scope: Any) -> str:
    """A key of the site's that asks the database."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "somebody"
    raise SynchronousOnlyOperation


@pytest.mark.parametrize(
    ("options", "publisher"),
    [({}, "user:1"), ({"count_denied": True}, "user:1"), ({"key": f"{__name__}.slowly"}, {"type": "websocket"})],
    ids=["budgets were given back", "refusals count", "only a database knows who it is"],
)
async def test_but_it_is_asked_where_the_refusal_says_nothing(
    enforce: Live, monkeypatch: Any, options: dict[str, Any], publisher: Any
) -> None:
    store = enforce(posts={**FIVE, **options})
    await used_up(publisher=publisher)
    if not options:
        store.denials.clear()
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.1", publisher)
    assert asked


async def test_one_that_can_never_pass_is_refused_as_that_and_smaller_ones_pass(enforce: Live) -> None:
    enforce(posts=FIVE)
    for number in range(6):
        members.add(group_ident("default", "large"), f"channel {number}")
    first = await refusal("large")
    await used_up()
    for refused in (first, await refusal("large")):
        assert refused is not None and (refused.members, refused.decision.retry_after) == (6, None)


async def test_what_a_rule_by_group_refuses_says_nothing_of_other_groups(enforce: Live) -> None:
    enforce(rooms={**ROOMS, "rate": "5/h"})
    await used_up()
    assert await refusal("room.1") is None
    assert await refusal("room.0", "user:2")


async def test_what_a_damper_refuses_says_nothing_of_the_next(enforce: Live, monkeypatch: Any) -> None:
    """It refuses a share; the others were not asked. Refusals that are said again count as attempts to it."""
    store = enforce(posts=FIVE, smooth={**ROOMS, "rate": "100000/s", "algorithm": "damper", "key": "everyone"})
    outcome = Outcome("smooth", "everyone", False, 5, 0, 0.5, 0.5, Reason.SUPPRESSED)
    with monkeypatch.context() as busy:
        busy.setattr(store.local_limits, "decide_all", lambda charges, **_: (outcome,))
        assert await refusal("room.0")
    await used_up()
    judged: list[Any] = []
    monkeypatch.setattr(store.local_limits, "decide_all", lambda charges, **_: judged.extend(charges))
    assert await refusal("room.1")
    assert [charge.rule.name for charge in judged] == ["smooth"]
