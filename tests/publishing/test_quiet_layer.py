"""Sockets on channels_redis without a message for longer than redis-py waits for a reply; check W046 warns of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from redis.exceptions import TimeoutError as RedisTimeout

from django_throttle.channels import ThrottledConsumerMixin, throttled_group_send
from django_throttle.checks import project
from tests.doors import Enforce
from tests.servers import need_package, slack

CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"
QUIET = 6  # seconds: the core layer waits for five
LAYERS: dict[str, tuple[str, dict[str, object]]] = {
    "short": (CORE, {"socket_timeout": 2}),
    "as wide as the wait": (CORE, {"socket_timeout": 5}),
    "longer": (CORE, {"socket_timeout": 5.5}),
    "none": (CORE, {"socket_timeout": None}),
    "as it comes": (CORE, {}),
    "pubsub": (PUBSUB, {"socket_timeout": 2}),
}


class News(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    groups = ["news"]

    async def news_item(self, event: dict[str, Any]) -> None:
        await self.send_json(event["text"])


async def outlives(alias: str) -> bool:
    """Whether a socket on this layer hears of something after the quiet; False if redis-py's timeout has ended it."""
    consumer = type("Consumer", (News,), {"channel_layer_alias": alias})
    socket = WebsocketCommunicator(consumer.as_asgi(), "/")
    await socket.connect()
    await asyncio.wait({socket.future}, timeout=QUIET)
    if socket.future.done():
        assert isinstance(socket.future.exception(), RedisTimeout)
        return False
    await throttled_group_send("news", {"type": "news.item", "text": "at last"}, publisher="user:1", layer=alias)
    heard = await socket.receive_json_from(timeout=slack(5))
    await socket.disconnect()
    return bool(heard == "at last")


async def test_the_check_warns_of_the_layers_whose_sockets_end(
    enforce: Enforce, redis_url: str, settings: Any, need_binary: Callable[[str], str]
) -> None:
    need_package("channels_redis")
    settings.CHANNEL_LAYERS = {
        alias: {
            "BACKEND": backend,
            "CONFIG": {"hosts": [{"address": redis_url, **options}], "prefix": f"quiet{number}"},
        }
        for number, (alias, (backend, options)) in enumerate(LAYERS.items())
    }
    enforce()
    ends = {
        alias for alias, lives in zip(LAYERS, await asyncio.gather(*map(outlives, LAYERS)), strict=True) if not lives
    }
    warned = {message.msg.split("'")[1] for message in project.check_layers(None)}
    for alias in LAYERS:
        await get_channel_layer(alias).flush()
    assert ends == warned >= {"short", "as wide as the wait"}
    assert not warned & {"longer", "none", "pubsub"}
