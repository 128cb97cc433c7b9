"""A chat that echoes and tells the room, on both workers; its frames share the search's budget."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.dispatch import receiver
from redis.exceptions import RedisError

from django_throttle.channels import ThrottledConsumerMixin, throttled_group_send
from django_throttle.exceptions import PublishRefused
from django_throttle.signals import layer_dropped

LONGEST = 200
PATIENCE = 1.0  # seconds that the layer has for a message; while Redis hangs it waits for ever
ROOM = "lobby"
lost: Counter[str] = Counter()  # full queues of the layer, by the method that lost a message


@receiver(layer_dropped)
def count_lost(*, method: str, queues: int, **_: object) -> None:
    lost[method] += queues


class ChatConsumer(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    """Answers ``{"id": 1, "text": "hello"}`` with an echo, and lets everyone else hear it."""

    throttle_scope = "chat"
    # A visitor floods on purpose, and should see what is refused rather than lose the socket.
    throttle_ladder = {"close": 200}
    groups = [ROOM]

    async def connect(self) -> None:
        await self.accept()
        await self.send_json({"type": "hello", "worker": os.getpid()})

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        said = content if isinstance(content, dict) else {}
        text = str(said.get("text", ""))[:LONGEST]
        await self.send_json({"type": "echo", "id": said.get("id"), "text": text, "worker": os.getpid()})
        await self._tell_the_room({"type": "chat.said", "by": self.channel_name, "text": text})

    async def _tell_the_room(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await throttled_group_send(ROOM, message, publisher=self)
        except PublishRefused as refused:
            await self.send_json({"type": "unheard", "rule": refused.decision.rule, "members": refused.members})
        except (TimeoutError, RedisError):
            await self.send_json({"type": "unheard"})

    async def chat_said(self, event: dict[str, Any]) -> None:
        if event["by"] != self.channel_name:
            await self.send_json({"type": "heard", "text": event["text"]})

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return json.loads(text_data)
        except ValueError:
            return None


class PageChatConsumer(ChatConsumer):
    """The same for a browser, whose scripts can't read a refused handshake: it is told in a frame."""

    refuse = "frame"
