"""An application for real servers in processes of their own; the environment says what they need.

REDIS_URL  where they count        RULES  the rules in force, as JSON        SETTINGS  other settings, as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import django
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
settings.DJANGO_THROTTLE = {
    "REDIS": os.environ["REDIS_URL"],
    "RULES": json.loads(os.environ["RULES"]),
    "DATABASE_RULES": False,
    "DEADLINE": 1.0,  # this machine may be busy with other tests; nothing here is about deadlines
    "BEAT_INTERVAL": 0.5,
    "PROCESS_TTL": 2.0,
    **json.loads(os.environ.get("SETTINGS", "{}")),
}
django.setup()


def who(scope: dict[str, Any]) -> str:
    """Each test is a caller of its own."""
    return scope["query_string"].decode()


class Talk(AsyncWebsocketConsumer):
    """Echoes; fails, or talks on and on, when told to."""

    throttle_scope = "chat"

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == "fail":
            raise ZeroDivisionError
        if text_data == "talk":
            for _ in range(200):
                await self.send("on and on")
                await asyncio.sleep(0.01)
        await self.send(text_data, bytes_data)


class Chat(ThrottledConsumerMixin, Talk):
    pass


class BrowserChat(Chat):
    refuse = "frame"


class SyncChat(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"

    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == "fail":
            raise ZeroDivisionError
        self.send(text_data, bytes_data)


application = ProtocolTypeRouter(
    {
        "websocket": URLRouter(
            [
                path("chat", Chat.as_asgi()),
                path("browser", BrowserChat.as_asgi()),
                path("sync", SyncChat.as_asgi()),
                path("middleware", ThrottleMiddleware(Talk.as_asgi(), scope="chat")),
            ]
        )
    }
)
