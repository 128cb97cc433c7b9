"""A group is as large as all processes together say, and those that are gone say nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from django_throttle.conf import conf
from django_throttle.exceptions import StoreError
from django_throttle.publishing import groups
from django_throttle.publishing.groups import LocalMembers, MemberCounts, MemberReporter, group_ident
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from django_throttle.stores.commands import MEMBERS
from tests.clock import FrozenClock
from tests.doors import Enforce
from tests.inside import commands_to

RULES = {"news": {"rate": "10/s", "events": ["publish"], "key": "everyone"}}
NAME = group_ident("default", "news")


class Process:
    """One process, as far as Redis can tell."""

    def __init__(self, store: Any) -> None:
        self.store, self.members = store, LocalMembers()
        self.report = MemberReporter(store, self.members)

    def size(self) -> int:
        return run(MemberCounts(self.members).of(NAME, self.store), self.store)

    def join(self, *channels: str) -> None:
        for channel in channels:
            self.members.add(NAME, channel)


@pytest.fixture
def pair(enforce: Enforce, redis_url: str, clock: FrozenClock) -> tuple[Process, Process]:
    enforce(**RULES)
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    return Process(store), Process(store)


def test_those_of_two_processes_are_added_up(pair: tuple[Process, Process]) -> None:
    first, second = pair
    first.join("a", "b", "a")
    second.join("c")
    assert (first.size(), second.size()) == (2, 1)
    for process in (*pair, *pair):
        process.report()
    assert (first.size(), second.size()) == (3, 3)
    first.members.discard(NAME, "a")
    second.members.discard(NAME, "c")
    assert (first.size(), second.size()) == (2, 2), "not reported yet, but each knows its own"
    for process in pair:
        process.report()
    assert (first.size(), second.size()) == (1, 1)


async def test_many_who_ask_ask_once_in_a_second(pair: tuple[Process, Process], monkeypatch: Any) -> None:
    store, counts, now = pair[0].store, MemberCounts(pair[1].members), [1000.0]
    pair[0].join("a")
    pair[0].report()
    asked = commands_to(store, monkeypatch)
    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asking = [asyncio.ensure_future(counts.aof(NAME, store)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert await asyncio.gather(*asking[1:]) == [1] * 49
    now[0] += 0.99
    assert counts.at_least(NAME, store) == 1 == await counts.aof(NAME, store)
    assert counts.at_least("group:default:other", store) == 0
    assert len(asked) == 1
    now[0] += 0.02
    assert await counts.aof(NAME, store) == 1
    assert len(asked) == 2


def test_who_is_silent_is_dead(pair: tuple[Process, Process], clock: FrozenClock) -> None:
    first, second = pair
    for process in pair:
        process.join("a")
        process.report()
    clock.step(conf().PROCESS_TTL)
    assert first.size() == 2
    clock.step(0.001)
    assert first.size() == 1
    first.report.whole_at = 0.0
    first.report()
    assert second.size() == 2
    clock.step(-2 * conf().PROCESS_TTL)
    assert second.size() == 1, "from a clock that went back"


def test_a_foreign_value_is_replaced(pair: tuple[Process, Process]) -> None:
    key = pair[0].store.key(MEMBERS, NAME)
    with pair[0].store.transport.client as client:
        client.set(key, "foreign", ex=60)
        assert pair[1].size() == 0
        pair[0].join("a")
        pair[0].report()
        client.hset(key, "another", "nonsense")
    assert pair[1].size() == 1


def test_without_redis_it_is_reported_later_and_the_last_answer_holds(settings: Any, redis_server: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": RULES, "DATABASE_RULES": False, "AGENT": False}
    process = Process(RedisStore("redis://127.0.0.1:1/0", deadline=1.0))
    process.join("a")
    with pytest.raises(StoreError):
        process.report()
    assert process.members.take_changed() == {NAME: 1}
    assert process.size() == 1
