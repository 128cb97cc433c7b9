"""Groups are as large as all processes together say; what their layer drops is counted apart from our refusals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from django_throttle.conf import conf
from django_throttle.exceptions import StoreError
from django_throttle.observe import prometheus
from django_throttle.publishing import groups
from django_throttle.publishing.groups import CountingLayer, LocalMembers, MemberCounts, MemberReporter, group_ident
from django_throttle.signals import layer_dropped
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from django_throttle.stores.commands import MEMBERS
from tests.clock import FrozenClock
from tests.doors import REDIS, Enforce
from tests.inside import commands_to
from tests.publishing.conftest import refusal
from tests.servers import need_package
from tests.sockets.guarded import used

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


CAPACITY = 20
Drops = Counter[str]


@pytest.fixture
def dropped() -> Iterator[Drops]:
    """Full queues by the layer's method, as receivers of the signal hear of them."""
    found: Drops = Counter()

    def hear(*, method: str, queues: int, **_: object) -> None:
        found[method] += queues

    layer_dropped.connect(hear)
    yield found
    layer_dropped.disconnect(hear)


def prometheus_drops() -> float:
    assert prometheus.count  # is imported, which connects its receiver
    return REGISTRY.get_sample_value("django_throttle_layer_drops_total", {"method": "group_send"}) or 0.0


def redis_layer(redis_url: str) -> Any:
    need_package("channels_redis")
    from channels_redis.core import RedisChannelLayer

    return RedisChannelLayer(hosts=[{"address": redis_url, "socket_timeout": None}], capacity=CAPACITY)


@REDIS
async def test_a_refusal_is_no_drop_and_what_is_dropped_stays_charged(
    enforce: Enforce, redis_url: str, caplog: pytest.LogCaptureFixture, dropped: Drops
) -> None:
    """Two processes that read nothing: one refusal by the rule, and what is dropped for want of room."""
    publications, before = CAPACITY + 5, prometheus_drops()
    rate = f"{3 * publications}/h"
    store = enforce(news={"rate": rate, "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"})
    layers = [redis_layer(redis_url) for _ in range(2)]
    for layer in layers:
        reader = CountingLayer(layer, "default")
        await reader.group_add("news", await reader.new_channel())
    with caplog.at_level(logging.INFO, logger="channels_redis.core"):
        refusals = [await refusal("news", layer=layers[0]) for _ in range(publications + 1)]
    for layer in layers:
        await layer.close_pools()
    assert [bool(refused) for refused in refusals] == [False] * publications + [True]
    assert (used(store, "everyone"), dropped) == (3 * publications, {"group_send": 2 * 5})
    assert prometheus_drops() - before == 2 * 5
    assert len([one for one in caplog.records if "over capacity in group news" in one.getMessage()]) == 5


@pytest.mark.parametrize("level", [logging.NOTSET, logging.ERROR], ids=["as it comes", "set"])
def test_it_is_counted_though_the_log_is_silent(dropped: Drops, caplog: pytest.LogCaptureFixture, level: int) -> None:
    log = logging.getLogger(f"tests.capacity.{level}")
    log.setLevel(level)
    caplog.set_level(logging.WARNING)
    caplog.handler.setLevel(logging.NOTSET)
    groups.DropFilter(log)
    log.info("%s of %s channels over capacity in group %s", 3, 600, "news")
    log.error("else")
    assert [record.getMessage() for record in caplog.records] == ["else"]
    log.setLevel(logging.INFO)  # the site asks for it
    log.info("%s of %s channels over capacity in group %s", 4, 600, "news")
    assert len(caplog.records) == 2
    assert dropped == {"group_send": 7}


async def test_what_a_slow_consumer_loses_beside_a_quick_one_is_counted(redis_url: str, dropped: Drops) -> None:
    """Both are in one process: it reads for both, and the slow one's own queue is full; not even the log says so."""
    shared = redis_layer(redis_url)
    quick, slow = CountingLayer(shared, "default"), CountingLayer(shared, "default")
    channels = [await layer.new_channel() for layer in (quick, slow)]
    for layer, channel in zip((quick, slow), channels, strict=True):
        await layer.group_add("news", channel)
    for number in range(CAPACITY + 7):
        await shared.group_send("news", {"type": "news.item", "number": number})
        assert (await quick.receive(channels[0]))["number"] == number
    heard = [(await slow.receive(channels[1]))["number"] for _ in range(CAPACITY)]
    await shared.close_pools()
    assert heard == list(range(7, CAPACITY + 7)), "the oldest are gone"
    assert dropped == {"receive": 7}
