"""A group is as large as all processes together say, and those that are gone say nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_throttle.conf import conf
from django_throttle.exceptions import StoreError
from django_throttle.publishing.groups import LocalMembers, MemberCounts, MemberReporter, group_ident
from django_throttle.stores import RedisStore
from django_throttle.stores.base import arun, run
from django_throttle.stores.commands import MEMBERS
from django_throttle.stores.transport import BATCH
from testproject.check.standstill import elapsed
from tests.clock import FrozenClock
from tests.doors import REDIS, Enforce
from tests.publishing.worker import GROUP, SECRET
from tests.servers import slack, wait_until

RULES = {"news": {"rate": "10/s", "events": ["publish"], "key": "everyone"}}
NAME = group_ident("default", GROUP)
TTL = 2.0


class Process:
    """One process, as far as Redis can tell."""

    def __init__(self, store: RedisStore) -> None:
        self.store, self.members = store, LocalMembers()
        self.tell = MemberReporter(store, self.members)

    def size(self, group: str = NAME) -> int:
        return run(MemberCounts(self.members).of(group, self.store), self.store)

    def join(self, *channels: str, group: str = NAME) -> None:
        for channel in channels:
            self.members.add(group, channel)


@pytest.fixture
def pair(enforce: Enforce) -> tuple[Process, Process]:
    store = enforce(**RULES)
    assert isinstance(store, RedisStore)
    return Process(store), Process(store)


@REDIS
class TestSizes:
    def test_those_of_two_processes_are_added_up(self, pair: tuple[Process, Process]) -> None:
        first, second = pair
        first.join("a", "b", "a")
        second.join("c")
        assert (first.size(), second.size()) == (2, 1)
        for process in (*pair, *pair):
            process.tell()
        assert (first.size(), second.size()) == (3, 3)
        first.members.discard(NAME, "a")
        second.members.discard(NAME, "c")
        assert (first.size(), second.size()) == (2, 2), "not told yet, but each knows its own"
        for process in pair:
            process.tell()
        assert (first.size(), second.size()) == (1, 1)

    async def test_on_an_event_loop(self, pair: tuple[Process, Process]) -> None:
        pair[0].join("a")
        pair[0].tell()
        assert await arun(MemberCounts(pair[1].members).of(NAME, pair[1].store), pair[1].store) == 1

    async def test_many_who_ask_at_once_ask_once(
        self, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, asked = pair[0].store, []
        ask, sizes = store.aexecute, MemberCounts(pair[1].members)

        async def counted(command: Any) -> Any:
            asked.append(command)
            await asyncio.sleep(0.01)
            return await ask(command)

        pair[0].join("a")
        pair[0].tell()
        monkeypatch.setattr(store, "aexecute", counted)
        asking = [asyncio.ensure_future(sizes.aof(NAME, store)) for _ in range(50)]
        await asyncio.sleep(0)
        asking[0].cancel()
        assert await asyncio.gather(*asking[1:]) == [1] * 49
        assert len(asked) == 1
        assert sizes.at_least(NAME, store) == 1 == await sizes.aof(NAME, store)
        assert sizes.at_least("group:default:other", store) == 0
        assert len(asked) == 1

    def test_who_is_silent_is_dead(self, pair: tuple[Process, Process], clock: FrozenClock) -> None:
        first, second = pair
        for process in pair:
            process.join("a")
            process.tell()
        clock.step(conf().PROCESS_TTL)
        assert first.size() == 2
        clock.step(0.001)
        assert first.size() == 1
        first.tell.whole_at = 0.0
        first.tell()
        assert second.size() == 2
        clock.step(-2 * conf().PROCESS_TTL)
        assert second.size() == 1, "from a clock that went back"

    def test_who_leaves_is_gone_at_once(self, pair: tuple[Process, Process], enforce: Enforce) -> None:
        pair[0].join("a")
        pair[0].join("a", group="other")
        pair[0].tell()
        assert pair[1].size() == 1
        pair[0].tell.report_none()
        assert pair[1].size() == 0
        with pair[1].store.transport.client as client:
            assert client.keys("*members") == []

    def test_it_is_asked_once_a_second(self, pair: tuple[Process, Process]) -> None:
        sizes = MemberCounts(pair[1].members)
        store = pair[1].store
        assert run(sizes.of(NAME, store), store) == 0
        pair[0].join("a")
        pair[0].tell()
        assert run(sizes.of(NAME, store), store) == 0
        sizes.forget()
        assert run(sizes.of(NAME, store), store) == 1

    def test_another_thread_may_forget_them_meanwhile(
        self, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair[0].join("a")
        pair[0].tell()
        sizes, store, monotonic = MemberCounts(pair[1].members), pair[1].store, time.monotonic
        assert run(sizes.of(NAME, store), store) == 1
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: (sizes.forget(), monotonic())[1])
            assert sizes.at_least(NAME, store) == 1

    def test_many_are_told_in_few_commands(self, pair: tuple[Process, Process]) -> None:
        first = pair[0]
        for number in range(1200):
            first.join("a", group=f"group:default:{number}")
        with first.store.transport.client as client:
            client.config_resetstat()
            first.tell()
            calls = sum(stat["calls"] for name, stat in client.info("commandstats").items() if "eval" in name)
        assert calls <= 6, "three, and those that make the script known"
        assert pair[1].size("group:default:1199") == 1

    def test_a_foreign_value_is_replaced(self, pair: tuple[Process, Process]) -> None:
        key = pair[0].store.key(MEMBERS, NAME)
        with pair[0].store.transport.client as client:
            client.set(key, "foreign", ex=60)
            assert pair[1].size() == 0
            client.set(key, "foreign", ex=60)
            pair[0].join("a")
            pair[0].tell()
            client.hset(key, "another", "nonsense")
        assert pair[1].size() == 1

    def test_nothing_is_told_where_no_rule_asks(self, enforce: Enforce) -> None:
        store = enforce()
        assert isinstance(store, RedisStore)
        process = Process(store)
        process.join("a")
        with store.transport.client as client:
            process.tell()
            assert client.keys("*") == []
            enforce(**RULES)
            process.tell()
            assert len(client.keys("*members")) == 1


def test_without_redis_it_is_told_later_and_the_last_answer_holds(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": RULES, "DATABASE_RULES": False, "AGENT": False}
    process = Process(RedisStore("redis://127.0.0.1:1/0", deadline=1.0))
    process.join("a")
    with pytest.raises(StoreError):
        process.tell()
    assert process.members.take_changed() == {NAME: 1}
    assert process.size() == 1


@pytest.fixture
def start(redis_url: str, settings: Any) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    quick = {"REDIS": redis_url, "RULES": RULES, "DATABASE_RULES": False, "PROCESS_TTL": TTL, "DEADLINE": 5.0}
    settings.DJANGO_THROTTLE = {**quick, "AGENT": False, "KEY_SECRET": SECRET}
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.publishing.worker", json.dumps(quick)]
        root = Path(__file__).parents[2]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def have(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdin and process.stdout
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ok\n"


def test_a_killed_process_falls_out(redis_url: str, start: Callable[[], subprocess.Popen[str]]) -> None:
    first, second = start(), start()
    have(first, 3)
    have(second, 4)
    reader = Process(RedisStore(redis_url, secret=SECRET, deadline=5.0))
    wait_until(lambda: reader.size() == 7)
    have(first, 1)
    wait_until(lambda: reader.size() == 5)
    second.kill()
    began = time.monotonic()
    wait_until(lambda: reader.size() == 1)
    took = elapsed(began)
    print(f"the members of a killed process were gone after {took:.2f} s")
    assert took < TTL + slack(1.0)


@REDIS
def test_a_node_that_is_away_keeps_nothing_from_the_others(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Cluster: what one batch of groups fails with is said when all have been tried, and it is told again."""
    store = enforce(**RULES)
    assert isinstance(store, RedisStore)
    process = Process(store)
    for number in range(BATCH + 1):
        process.members.add(f"group {number}", "channel")
    sent: list[Any] = []

    def send(calls: Any) -> list[Any]:
        sent.append(calls)
        return [ConnectionError("away")] if len(sent) == 1 else [1]

    monkeypatch.setattr(store, "send", send)
    with pytest.raises(StoreError, match="away"):
        process.tell()
    assert len(sent) == 2
    assert len(process.members.take_changed()) == BATCH
