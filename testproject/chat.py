"""A chat that echoes and tells the room; its frames share the search's budget."""

from __future__ import annotations

import json
import os
from typing import Any

from channels.generic.websocket import AsyncJsonWebsocketConsumer

from django_throttle.channels import ThrottledConsumerMixin

LONGEST = 200


class ChatConsumer(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    """Answers ``{"id": 1, "text": "hello"}`` with an echo, and lets everyone else hear it."""

    throttle_scope = "chat"
    groups = ["lobby"]

    async def connect(self) -> None:
        await self.accept()
        await self.send_json({"type": "hello", "worker": os.getpid()})

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        said = content if isinstance(content, dict) else {}
        text = str(said.get("text", ""))[:LONGEST]
        await self.send_json({"type": "echo", "id": said.get("id"), "text": text, "worker": os.getpid()})
        await self.channel_layer.group_send("lobby", {"type": "chat.said", "by": self.channel_name, "text": text})

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
