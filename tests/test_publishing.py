"""What is published to a group costs one and one for each member, and reaches nobody when that is too much."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.exceptions import InvalidChannelLayerError
from channels.generic.websocket import AsyncJsonWebsocketConsumer, JsonWebsocketConsumer
from channels.layers import channel_layers, get_channel_layer
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import SynchronousOnlyOperation
from django.test import RequestFactory
from prometheus_client import REGISTRY

from django_throttle.channels import ThrottledConsumerMixin, throttled_group_send, throttled_group_send_sync
from django_throttle.conf import conf
from django_throttle.contrib import prometheus
from django_throttle.core.io import run
from django_throttle.exceptions import InvalidIdent, PublishRefused, Refused, StoreError
from django_throttle.identity.known_caller import GROUP
from django_throttle.runtime import is_on_event_loop
from django_throttle.signals import layer_dropped
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo, LoopIo
from django_throttle.stores.refusal_cache import RefusalCache
from django_throttle.websockets import groups
from django_throttle.websockets.groups import (
    CountingLayer,
    LocalMembers,
    MemberCounts,
    MemberReporter,
    group_ident,
    member_counts,
    members,
)
from tests.clock import FrozenClock
from tests.docs.test_readme import NAMES
from tests.doors import REDIS, Enforce
from tests.inside import commands_to
from tests.pages import block
from tests.pages import run as run_shown
from tests.servers import need_package
from tests.websockets.guarded import Line, Live, live_enforcer, used

MESSAGE = {"type": "news.item", "text": "hello"}
CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"
renew = members.renew


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    renew()
    member_counts.forget()
    channel_layers.backends.clear()
    yield
    channel_layers.backends.clear()
    renew()


class Silent:
    """A channel layer that sends nothing."""

    async def group_send(self, group: str, message: Any) -> None:
        """Send nothing."""


async def refusal(
    group: str, publisher: Any = "user:1", send: Any = throttled_group_send, **options: Any
) -> PublishRefused | None:
    try:
        await send(group, MESSAGE, publisher=publisher, **{"layer": Silent(), **options})
    except PublishRefused as refused:
        return refused
    return None


refusal_sync = partial(refusal, send=sync_to_async(throttled_group_send_sync))


NEWS = group_ident("default", "news")
TEN = {"rate": "10/min", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"}
ONE = {**TEN, "rate": "1/min"}


class News(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    groups = ["news"]

    async def news_item(self, event: dict[str, Any]) -> None:
        await self.send_json(event["text"])

    async def receive_json(self, content: Any, **_: Any) -> None:
        if content == "fail":
            raise ValueError("broken")
        await throttled_group_send("news", MESSAGE, publisher=self, layer=self.channel_layer)


class SyncNews(ThrottledConsumerMixin, JsonWebsocketConsumer):
    groups = ["news"]

    def news_item(self, event: dict[str, Any]) -> None:
        self.send_json(event["text"])

    def receive_json(self, content: Any, **_: Any) -> None:
        if content == "leave":
            async_to_sync(self.channel_layer.group_discard)("news", self.channel_name)
            self.send_json("left")
        else:
            throttled_group_send_sync("news", MESSAGE, publisher=self.scope)


@pytest.mark.parametrize(
    ("consumer", "backend", "enforce"),
    [(News, "", "memory"), (SyncNews, "", "redis"), (News, CORE, "redis"), (News, PUBSUB, "redis")],
    ids=["async", "sync", "channels_redis", "channels_redis pubsub"],
    indirect=["enforce"],
)
async def test_it_costs_one_and_one_for_each_member(
    enforce: Enforce, consumer: Any, backend: str, settings: Any, redis_url: str
) -> None:
    if backend:
        hosts = {"hosts": [{"address": redis_url, "socket_timeout": None}]}
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": backend, "CONFIG": hosts}}
    enforce(news=TEN)
    lines = [await Line(consumer.as_asgi()).open() for _ in range(4)]
    assert members.count(NEWS) == 4
    for number in (1, 2):
        lines[0].send('"publish"')
        for line in lines:
            await line.until(lambda line=line, number=number: line.frames == ["hello"] * number)
    refused = await refusal("news", layer=None)
    assert isinstance(refused, Refused)
    assert (refused.group, refused.members) == ("news", 4)
    assert (refused.decision.rule, refused.decision.remaining) == ("news", 0)
    assert refused.decision.retry_after
    for line in lines:
        await line.close()
        assert line.frames == ["hello"] * 2, "what was refused reached somebody"
    assert members.count(NEWS) == 0
    if backend:
        await get_channel_layer().flush()


async def test_who_leaves_or_breaks_is_in_no_group(enforce: Enforce) -> None:
    enforce()
    async with Line(SyncNews.as_asgi()) as leaving, Line(SyncNews.as_asgi()):
        leaving.send('"leave"')
        await leaving.until(lambda: leaving.frames == ["left"])
        assert members.count(NEWS) == 1
        breaking = await Line(News.as_asgi()).open()
        assert members.count(NEWS) == 2
        breaking.send('"fail"')
        with pytest.raises(ValueError, match="broken"):
            await breaking.ended()
        assert members.count(NEWS) == 1


async def test_by_the_synchronous_twin_whoever_makes_a_request_publishes(enforce: Enforce) -> None:
    enforce(news={**TEN, "rate": "2/min"})
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    layer = get_channel_layer()
    await layer.group_add("news", "reader")
    assert [bool(await refusal_sync("news", request, layer=None)) for _ in range(3)] == [False, False, True]
    assert layer.channels["reader"].qsize() == 2


async def test_publishers_groups_and_accounts_have_budgets_of_their_own(enforce: Enforce) -> None:
    enforce(each={**ONE, "key": "user", "scopes": ["a"]}, group={**ONE, "key": GROUP, "scopes": ["room.*"]})
    assert not await refusal("a", "user:1") and await refusal("a", "user:1")
    assert not await refusal("a", "user:2")
    assert await refusal("a", {"type": "websocket", "user": User(pk=1)}), "the same user by a socket"
    assert not await refusal("a", "tenant:acme"), "no rule of its key"
    assert not await refusal("room.1", "user:1") and not await refusal("room.2", "user:1")
    assert await refusal("room.1", "user:2")
    assert await refusal("else", "user:2", scope="a"), "a scope instead of the group's name"
    enforce(account={**ONE, "key": "tenant"})
    assert not await refusal("a", "tenant:acme") and await refusal("b", "tenant:acme")
    assert not await refusal("b", "tenant:other")


async def test_who_publishes_is_said_so_that_it_can_be_counted(enforce: Enforce) -> None:
    enforce(news=TEN)
    with pytest.raises(TypeError, match="publisher is a consumer"):
        await refusal("news", None)
    with pytest.raises(InvalidIdent):
        await refusal("news", "")
    with pytest.raises(InvalidChannelLayerError, match="no channel layer 'none'"):
        await refusal("news", layer="none")


async def test_cancelled_while_joining_nobody_is_counted(enforce: Enforce) -> None:
    class Slow:
        async def new_channel(self) -> str:
            return "own"

        async def group_add(self, group: str, channel: str) -> None:
            await asyncio.Event().wait()

    consumer = CountingLayer(Slow(), "default")
    joining = asyncio.ensure_future(consumer.group_add("news", await consumer.new_channel()))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.wait([joining])
    consumer.end()
    assert members.count(NEWS) == 0


async def test_what_the_documentation_shows(enforce: Enforce) -> None:
    consumer = run_shown(block("publishing", "PublishRefused"), **NAMES)["RoomConsumer"]
    rules = run_shown(block("publishing", "django_throttle.channels.group"))["DJANGO_THROTTLE"]["RULES"]
    enforce(**{**rules, "rooms": {**rules["rooms"], "rate": "1/min"}})
    async with Line(consumer.as_asgi()) as line:
        line.send(*['{"text": "hello", "type": "websocket.disconnect"}'] * 2)
        await line.until(lambda: any("code" in frame for frame in line.frames))
        assert (line.frames[-1]["code"], line.frames[-1]["rule"]) == ("rate_limited", "rooms")


FIVE = {"rate": "5/h", "events": ["publish"], "key": "user", "algorithm": "gcra"}
ROOMS = {"rate": "1000/h", "events": ["publish"], "key": GROUP, "algorithm": "gcra"}


@pytest.fixture
def live(redis_url: str, settings: Any, clock: FrozenClock) -> Live:
    """Puts rules in force on a store that remembers refusals by the test's clock."""

    def enforce(**given: Any) -> RedisStore:
        store = live_enforcer(redis_url, settings)(**given)
        store.refusal_cache = RefusalCache(clock)
        return store

    return enforce


async def used_up(refuse: Any = refusal, publisher: Any = "user:1") -> None:
    assert [bool(await refuse("room.0", publisher)) for _ in range(6)] == [False] * 5 + [True]


@pytest.mark.parametrize("refuse", [refusal, refusal_sync], ids=["asynchronous", "synchronous"])
async def test_to_any_group_nothing_is_asked_for_a_second(
    live: Live, monkeypatch: Any, clock: FrozenClock, refuse: Any
) -> None:
    store = live(posts=FIVE, rooms=ROOMS)
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
    if is_on_event_loop():
        raise SynchronousOnlyOperation
    return "somebody"


@pytest.mark.parametrize(
    ("options", "publisher"),
    [({}, "user:1"), ({"count_denied": True}, "user:1"), ({"key": f"{__name__}.slowly"}, {"type": "websocket"})],
    ids=["budgets were given back", "refusals count", "only a database knows who it is"],
)
async def test_but_it_is_asked_where_the_refusal_says_nothing(
    live: Live, monkeypatch: Any, options: dict[str, Any], publisher: Any
) -> None:
    store = live(posts={**FIVE, **options})
    await used_up(publisher=publisher)
    if not options:
        store.refusal_cache.clear()
    asked = commands_to(store, monkeypatch)
    assert await refusal("room.1", publisher)
    assert asked


RULES = {"news": {"rate": "10/s", "events": ["publish"], "key": "everyone"}}


class Process:
    def __init__(self, store: Any) -> None:
        self.store, self.members = store, LocalMembers()
        self.report = MemberReporter(store, self.members)

    def size(self) -> int:
        return run(MemberCounts(self.members).count(BlockingIo(self.store), NEWS))

    def join(self, *channels: str) -> None:
        for channel in channels:
            self.members.add(NEWS, channel)


@pytest.fixture
def pair(enforce: Enforce, redis_url: str, clock: FrozenClock) -> tuple[Process, Process]:
    enforce(**RULES)
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    return Process(store), Process(store)


def test_those_of_two_processes_are_added_up(pair: tuple[Process, Process], enforce: Enforce) -> None:
    first, second = pair
    first.join("a", "b", "a")
    second.join("c")
    assert (first.size(), second.size()) == (2, 1)
    for process in (*pair, *pair):
        process.report()
    assert (first.size(), second.size()) == (3, 3)
    first.members.discard(NEWS, "a")
    second.members.discard(NEWS, "c")
    assert (first.size(), second.size()) == (2, 2), "not reported yet, but each knows its own"
    for process in pair:
        process.report()
    assert (first.size(), second.size()) == (1, 1)
    enforce()
    first.join("d")
    first.report()
    assert second.size() == 1, "nothing counts them"
    enforce(**RULES)
    first.report()
    assert second.size() == 2
    first.report.report_none()
    assert second.size() == 0, "its process ends"


async def test_many_who_ask_ask_once_in_a_second(pair: tuple[Process, Process], monkeypatch: Any) -> None:
    store, counts, now = pair[0].store, MemberCounts(pair[1].members), [1000.0]
    pair[0].join("a")
    pair[0].report()
    asked, io = commands_to(store, monkeypatch), LoopIo(store)
    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asking = [asyncio.ensure_future(counts.count(io, NEWS)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert await asyncio.gather(*asking[1:]) == [1] * 49
    now[0] += 0.99
    assert counts.at_least(NEWS, store) == 1 == await counts.count(io, NEWS)
    assert counts.at_least("group:default:other", store) == 0
    assert len(asked) == 1
    now[0] += 0.02
    assert await counts.count(io, NEWS) == 1
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


def test_without_redis_it_is_reported_later_and_the_last_answer_holds(settings: Any, redis_server: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": RULES, "DATABASE_RULES": False}
    process = Process(RedisStore("redis://127.0.0.1:1/0", deadline=1.0))
    process.join("a")
    with pytest.raises(StoreError):
        process.report()
    assert process.members.take_changed() == {NEWS: 1}
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
