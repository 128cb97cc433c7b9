"""Rules in force, and groups that nobody is in yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import channel_layers

from django_throttle.channels import throttled_group_send, throttled_group_send_sync
from django_throttle.exceptions import PublishRefused
from django_throttle.publishing.groups import member_counts, members
from tests.doors import enforcer

enforce = pytest.fixture(enforcer)
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


async def refusal(group: str, publisher: Any = "user:1", **options: Any) -> PublishRefused | None:
    """Publish to a group; return the refusal, if there is one."""
    try:
        await throttled_group_send(group, MESSAGE, publisher=publisher, **{"layer": Silent(), **options})
    except PublishRefused as refused:
        return refused
    return None


@sync_to_async
def refusal_sync(group: str, publisher: Any = "user:1", **options: Any) -> PublishRefused | None:
    """The same by the synchronous twin."""
    try:
        throttled_group_send_sync(group, MESSAGE, publisher=publisher, **{"layer": Silent(), **options})
    except PublishRefused as refused:
        return refused
    return None
