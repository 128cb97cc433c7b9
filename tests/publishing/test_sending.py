"""What is published to a group costs one and one for each member, and reaches nobody when that is too much."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, JsonWebsocketConsumer
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory

from django_throttle.channels import ThrottledConsumerMixin, throttled_group_send, throttled_group_send_sync
from django_throttle.core.decision import Reason
from django_throttle.exceptions import InvalidIdent, PublishRefused, Refused
from django_throttle.publishing import GROUP_KEY
from django_throttle.publishing.groups import CountingLayer, group_ident, members
from tests.consumers import opened
from tests.docs.test_readme import run
from tests.doors import BOTH, Enforce
from tests.inside import counters
from tests.pages import block

NEWS = group_ident("default", "news")
MESSAGE = {"type": "news.item", "text": "hello"}
TEN = {"rate": "10/min", "events": ["publish"], "key": "everyone", "algorithm": "fixed_window"}


class News(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    groups = ["news"]

    async def news_item(self, event: dict[str, Any]) -> None:
        await self.send_json(event["text"])

    async def receive_json(self, content: Any, **_: Any) -> None:
        try:
            await throttled_group_send("news", MESSAGE, publisher=self, layer=self.channel_layer)
        except PublishRefused as refused:
            await self.send_json({"refused": refused.decision.rule, "members": refused.members})


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


KINDS = pytest.mark.parametrize("consumer", [News, SyncNews], ids=["async", "sync"])


async def readers(count: int, consumer: Any = News) -> list[WebsocketCommunicator]:
    return [await opened(consumer.as_asgi()) for _ in range(count)]


async def close(sockets: list[WebsocketCommunicator]) -> None:
    for socket in sockets:
        await socket.disconnect()


@BOTH
@KINDS
async def test_it_costs_one_and_one_for_each_member(enforce: Enforce, consumer: Any) -> None:
    enforce(news=TEN)
    sockets = await readers(4, consumer)
    assert members.count(NEWS) == 4
    for _ in range(2):
        await sockets[0].send_json_to("publish")
        for socket in sockets:
            assert await socket.receive_json_from() == "hello"
    with pytest.raises(PublishRefused) as refused:
        await throttled_group_send("news", MESSAGE, publisher="user:1")
    assert isinstance(refused.value, Refused)
    assert (refused.value.group, refused.value.members) == ("news", 4)
    decision = refused.value.decision
    assert (decision.rule, decision.remaining) == ("news", 0)
    assert decision.retry_after
    assert all(socket.output_queue.empty() for socket in sockets), "what was refused reached somebody"
    await close(sockets)
    assert members.count(NEWS) == 0


async def test_publications_wait_for_their_turn(enforce: Enforce) -> None:
    queue = {"rate": "20/s", "burst": 3, "algorithm": "leaky_bucket", "action": "delay"}
    enforce(news={**TEN, **queue})
    began = time.monotonic()
    await asyncio.gather(*(throttled_group_send("news", MESSAGE, publisher="user:1") for _ in range(2)))
    await sync_to_async(throttled_group_send_sync)("news", MESSAGE, publisher="user:1")
    assert time.monotonic() - began >= 0.05 + 0.1  # the clock of the store stands still
    with pytest.raises(PublishRefused):
        await throttled_group_send("news", MESSAGE, publisher="user:1")


async def test_a_consumer_can_tell_its_client(enforce: Enforce) -> None:
    enforce(news={**TEN, "rate": "2/min"})
    (socket,) = await readers(1)
    await socket.send_json_to("publish")
    assert await socket.receive_json_from() == "hello"
    await socket.send_json_to("publish")
    assert await socket.receive_json_from() == {"refused": "news", "members": 1}
    await close([socket])


async def test_who_leaves_is_not_counted(enforce: Enforce) -> None:
    enforce()
    sockets = await readers(2, SyncNews)
    await sockets[0].send_json_to("leave")
    assert await sockets[0].receive_json_from() == "left"
    assert members.count(NEWS) == 1
    await close(sockets)


async def test_a_socket_that_breaks_leaves_all_groups(enforce: Enforce) -> None:
    class Breaking(News):
        async def receive_json(self, content: Any, **_: Any) -> None:
            raise ValueError("broken")

        async def websocket_disconnect(self, message: Any) -> None:
            raise AssertionError("nobody tells it")

    enforce()
    (socket,) = await readers(1, Breaking)
    assert members.count(NEWS) == 1
    await socket.send_json_to("anything")
    with pytest.raises(ValueError, match="broken"):
        await socket.wait()
    assert members.count(NEWS) == 0


def test_the_synchronous_twin(enforce: Enforce) -> None:
    enforce(news={**TEN, "rate": "2/min"})
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    layer = get_channel_layer()
    async_to_sync(layer.group_add)("news", "reader")
    for _ in range(2):
        throttled_group_send_sync("news", MESSAGE, publisher=request)
    assert layer.channels["reader"].qsize() == 2
    with pytest.raises(PublishRefused):
        throttled_group_send_sync("news", MESSAGE, publisher=request)
    assert layer.channels["reader"].qsize() == 2


async def publishes(group: str, publisher: Any, **options: Any) -> bool:
    try:
        await throttled_group_send(group, MESSAGE, publisher=publisher, **options)
    except PublishRefused:
        return False
    return True


async def test_publishers_groups_and_accounts_have_budgets_of_their_own(enforce: Enforce) -> None:
    one = {**TEN, "rate": "1/min"}
    enforce(each={**one, "key": "user", "scopes": ["a"]}, group={**one, "key": GROUP_KEY, "scopes": ["room.*"]})
    assert await publishes("a", "user:1") and not await publishes("a", "user:1")
    assert await publishes("a", "user:2")
    scope = {"type": "websocket", "user": User(pk=1)}
    assert not await publishes("a", scope), "the same user by a socket"
    assert await publishes("a", "tenant:acme"), "no rule of its key"
    assert await publishes("room.1", "user:1") and await publishes("room.2", "user:1")
    assert not await publishes("room.1", "user:2")
    assert not await publishes("else", "user:2", scope="a"), "a scope instead of the group's name"
    enforce(account={**one, "key": "tenant"})
    assert await publishes("a", "tenant:acme") and not await publishes("b", "tenant:acme")
    assert await publishes("b", "tenant:other")


async def test_a_user_has_a_budget_for_each_group(enforce: Enforce) -> None:
    enforce(each={**TEN, "rate": "1/min", "key": f"user+{GROUP_KEY}"})
    assert await publishes("a", "user:1") and not await publishes("a", "user:1")
    assert await publishes("b", "user:1") and await publishes("a", "user:2")
    assert await publishes("a", "tenant:acme") and await publishes("a", "tenant:acme")


async def test_where_no_rule_counts_publications_nobody_asks_for_a_size(
    enforce: Enforce, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforce()
    monkeypatch.setattr("django_throttle.publishing.groups.MemberCounts.of", None)
    monkeypatch.setattr("django_throttle.publishing.groups.MemberCounts.aof", None)
    assert await publishes("news", "user:1")


async def test_who_publishes_is_said_so_that_it_can_be_counted(enforce: Enforce) -> None:
    enforce(news=TEN)
    with pytest.raises(TypeError, match="publisher is a consumer"):
        await throttled_group_send("news", MESSAGE, publisher=None)
    with pytest.raises(InvalidIdent):
        await throttled_group_send("news", MESSAGE, publisher="")


class Recording:
    """A channel layer that only remembers what it was to send."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def group_send(self, group: str, message: Any) -> None:
        self.sent.append(group)


async def test_what_is_refused_is_not_even_given_to_the_layer(enforce: Enforce) -> None:
    enforce(news={**TEN, "rate": "1/min"})
    layer = Recording()
    assert await publishes("news", "user:1", layer=layer)
    assert not await publishes("news", "user:1", layer=layer)
    assert layer.sent == ["news"]


def test_nor_by_the_synchronous_twin(enforce: Enforce) -> None:
    enforce(news={**TEN, "rate": "1/min"})
    layer = Recording()
    throttled_group_send_sync("news", MESSAGE, publisher="user:1", layer=layer)
    with pytest.raises(PublishRefused):
        throttled_group_send_sync("news", MESSAGE, publisher="user:1", layer=layer)
    assert layer.sent == ["news"]


@pytest.mark.parametrize("name", ["", "two words", "x" * 200, None], ids=repr)
async def test_a_name_that_no_group_can_have_costs_nothing(enforce: Enforce, name: Any) -> None:
    store = enforce(news=TEN)
    with pytest.raises(TypeError, match="Group name"):
        await throttled_group_send(name, MESSAGE, publisher="user:1")
    with pytest.raises(TypeError, match="Group name"):
        await sync_to_async(throttled_group_send_sync)(name, MESSAGE, publisher="user:1")
    assert counters(store) == {}


async def test_a_damper_refuses_a_share(enforce: Enforce) -> None:
    enforce(account={"rate": "10/s", "algorithm": "damper", "events": ["publish"], "key": "everyone"})
    consumers = [CountingLayer(get_channel_layer(), "default") for _ in range(9)]
    for consumer in consumers:
        await consumer.group_add("news", await consumer.new_channel())
    reasons = []
    for _ in range(60):
        try:
            await throttled_group_send("news", MESSAGE, publisher="user:1")
        except PublishRefused as refused:
            reasons.append(refused.decision.outcomes[0].reason)
    assert 0 < len(reasons) < 60
    assert set(reasons) == {Reason.SUPPRESSED}


async def test_cancelled_while_joining_nobody_is_counted(enforce: Enforce) -> None:
    class Slow:
        async def new_channel(self) -> str:
            return "own"

        async def group_add(self, group: str, channel: str) -> None:
            await asyncio.Event().wait()

    consumer = CountingLayer(Slow(), "default")
    channel = await consumer.new_channel()
    joining = asyncio.ensure_future(consumer.group_add("news", channel))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.wait([joining])
    consumer.end()
    assert members.count(NEWS) == 0


async def test_what_the_documentation_shows(enforce: Enforce) -> None:
    found = run(block("publishing", "PublishRefused"))
    rules = run(block("publishing", "django_throttle.publishing.group"))["DJANGO_THROTTLE"]["RULES"]
    enforce(**{**rules, "rooms": {**rules["rooms"], "rate": "1/min"}})
    socket = await opened(found["RoomConsumer"].as_asgi())
    for _ in range(2):
        await socket.send_json_to({"text": "hello"})
    assert (await socket.receive_json_from())["refused"] == "rooms"
    await socket.disconnect()
