"""A publisher that was refused is refused again to any group, and the store hears nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_throttle import rulebook
from django_throttle.channels import throttled_group_send, throttled_group_send_sync
from django_throttle.core import Outcome, Override, Rule
from django_throttle.core.commands import Charge
from django_throttle.core.decision import Decision, Reason
from django_throttle.exceptions import PublishRefused
from django_throttle.publishing import GROUP_KEY
from django_throttle.publishing.groups import group_ident, members
from django_throttle.rulebook import Snapshot
from django_throttle.signals import throttled
from django_throttle.stores import RedisStore
from django_throttle.stores.denials import Denials
from tests.clock import FrozenClock
from tests.inside import commands_to
from tests.sockets.guarded import Live, live_enforcer

MESSAGE = {"type": "news.item"}
FIVE = {"rate": "5/h", "events": ["publish"], "key": "user", "algorithm": "gcra"}
ROOMS = {"rate": "1000/h", "events": ["publish"], "key": GROUP_KEY, "algorithm": "gcra"}


@pytest.fixture
def enforce(redis_url: str, settings: Any, clock: FrozenClock) -> Live:
    """Puts rules in force on a store that remembers refusals by the test's clock."""
    enforced = live_enforcer(redis_url, settings)

    def enforce(**given: Any) -> RedisStore:
        store = enforced(**given)
        store.denials = Denials(clock)
        return store

    return enforce


class Silent:
    """A channel layer that sends nothing."""

    async def group_send(self, group: str, message: Any) -> None:
        return None


async def refusal(group: str, publisher: Any = "user:1") -> PublishRefused | None:
    try:
        await throttled_group_send(group, MESSAGE, publisher=publisher, layer=Silent())
    except PublishRefused as refused:
        return refused
    return None


def refusal_sync(group: str, publisher: Any = "user:1") -> PublishRefused | None:
    try:
        throttled_group_send_sync(group, MESSAGE, publisher=publisher, layer=Silent())
    except PublishRefused as refused:
        return refused
    return None


async def used_up(group: str = "room.0") -> None:
    """The budget of five; the sixth is refused."""
    assert [bool(await refusal(group)) for _ in range(6)] == [False] * 5 + [True]


async def test_to_whatever_group_nothing_is_asked(enforce: Live, monkeypatch: Any, clock: FrozenClock) -> None:
    store = enforce(posts=FIVE, rooms=ROOMS)
    await used_up()
    asked = commands_to(store, monkeypatch)
    clock.tick(0.5)
    again = [await refusal(f"room.{number}") for number in range(20)]
    again += [await sync_to_async(refusal_sync)(f"room.{number}") for number in range(20)]
    assert asked == []
    first = again[0]
    assert first is not None and all(again)
    assert (first.decision.rule, first.group, first.members) == ("posts", "room.0", 0)
    assert first.decision.retry_after is not None and 700 < first.decision.retry_after <= 719.5
    assert await refusal("room.0", "user:2") is None, "another one is asked about"


async def test_it_is_noted_by_the_synchronous_twin_too(enforce: Live, monkeypatch: Any) -> None:
    store = enforce(posts=FIVE)
    for _ in range(6):
        await sync_to_async(refusal_sync)("room.0")
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.1")
    assert asked == []


async def test_for_a_second(enforce: Live, monkeypatch: Any, clock: FrozenClock) -> None:
    store = enforce(posts=FIVE)
    await used_up()
    asked = commands_to(store, monkeypatch)
    clock.tick(0.99)
    assert await refusal("room.1") and not asked
    clock.tick(0.02)
    assert await refusal("room.1") and asked


async def test_not_once_budgets_were_given_back(enforce: Live, monkeypatch: Any) -> None:
    store = enforce(posts=FIVE)
    await used_up()
    store.denials.clear()
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.1")
    assert asked


async def test_one_that_can_never_pass_is_refused_as_that(enforce: Live) -> None:
    enforce(posts=FIVE)
    await used_up()
    large = group_ident("default", "large")
    for number in range(6):
        members.add(large, f"channel {number}")
    try:
        refused = await refusal("large")
    finally:
        for number in range(6):
            members.discard(large, f"channel {number}")
    assert refused is not None and refused.members == 6
    assert refused.decision.retry_after is None


async def test_a_smaller_one_than_was_refused_may_pass(enforce: Live) -> None:
    enforce(posts=FIVE)
    for number in range(5):
        members.add(group_ident("default", "room.5"), f"channel{number}")
    try:
        refused = await refusal("room.5")
        assert refused is not None and refused.members == 5
        assert await refusal("room.0") is None
    finally:
        for number in range(5):
            members.discard(group_ident("default", "room.5"), f"channel{number}")


async def test_where_refusals_count_each_is_counted(enforce: Live, monkeypatch: Any) -> None:
    store = enforce(posts={**FIVE, "count_denied": True})
    await used_up()
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.0")
    assert asked


async def test_what_a_rule_by_group_refuses_says_nothing_of_other_groups(enforce: Live) -> None:
    enforce(rooms={**ROOMS, "rate": "5/h"})
    await used_up()
    assert await refusal("room.1") is None
    assert await refusal("room.0", "user:2")


async def test_an_edited_rule_is_asked_about(enforce: Live) -> None:
    enforce(posts=FIVE)
    await used_up()
    before = rulebook.pin(Snapshot([Rule.from_options("posts", {**FIVE, "algorithm": "sliding_log"})]))
    try:
        assert await refusal("room.0") is None
    finally:
        rulebook.pin(before)


async def test_who_is_blocked_asks_for_no_size(enforce: Live, monkeypatch: Any) -> None:
    store = enforce(posts=FIVE)
    rules = [Rule.from_options("posts", FIVE)]
    before = rulebook.pin(Snapshot(rules, overrides=[Override(subject="user:1", effect="block")]))
    try:
        asked = commands_to(store, monkeypatch)
        refused = await refusal("room.0")
        assert refused is not None and refused.decision.outcomes[0].reason == "blocked"
        assert asked == []
    finally:
        rulebook.pin(before)


async def test_receivers_hear_of_it(enforce: Live) -> None:
    enforce(posts=FIVE)
    await used_up()
    heard: list[Decision] = []

    def refused(sender: Any, facts: Any, decision: Decision, **_: Any) -> None:
        heard.append(decision)

    throttled.connect(refused)
    try:
        await refusal("room.1")
        await sync_to_async(refusal_sync)("room.2")
    finally:
        throttled.disconnect(refused)
    assert [decision.rule for decision in heard] == ["posts"] * 2


def slowly(scope: Any) -> str:
    """A key of the site's that asks the database."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "somebody"
    raise SynchronousOnlyOperation


async def test_whom_only_a_database_knows_is_asked_about(enforce: Live, monkeypatch: Any) -> None:
    store, scope = enforce(posts={**FIVE, "key": "tests.publishing.test_refusals.slowly"}), {"type": "websocket"}
    assert [bool(await refusal("room.0", scope)) for _ in range(6)] == [False] * 5 + [True]
    await sync_to_async(refusal_sync)("room.0", scope)
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.1", scope)
    assert asked


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


async def test_no_more_is_remembered_than_there_is_room_for(enforce: Live, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_throttle.stores.denials.MOST", 3)
    store = enforce(posts={**FIVE, "rate": "1/h"})
    for number in range(5):
        assert await refusal("room", f"user:{number}") is None
        assert await refusal("room", f"user:{number}")
    (rule,) = rulebook.current().rules
    remembered = [number for number in range(5) if store.denials.refused((Charge(rule, f"user:{number}", 1),))]
    assert remembered == [2, 3, 4], "those refused last"
