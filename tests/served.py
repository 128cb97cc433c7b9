"""An application for real servers in processes of their own; the environment says what they need.

REDIS_URL  where they count        RULES  the rules in force, as JSON        SETTINGS  other settings, as JSON

The query of a handshake is who comes, and what of the consumer: ``/chat?NAME``, ``/chat?NAME&deny``.
"""

import asyncio
import json
import os
import time
from typing import Any

import django
from channels.exceptions import DenyConnection
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
settings.DJANGO_THROTTLE = {
    "REDIS": os.environ["REDIS_URL"],
    "RULES": json.loads(os.environ["RULES"]),
    "DATABASE_RULES": False,
    "DEADLINE": 5.0,  # this machine may be busy with other tests; nothing here is about deadlines
    "PROCESS_TTL": 2.0,
    "RETRY_JITTER": 0.0,
    **json.loads(os.environ.get("SETTINGS", "{}")),
}
settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_throttle.middleware.ThrottleMiddleware"]
django.setup()

CLOSED = 4001  # what a consumer closes with
SLOW = 0.3  # seconds before a slow consumer accepts
TALK = 50  # frames, one every 10 ms


def caller(scope: dict[str, Any]) -> str:
    """Each test is a caller of its own."""
    return scope["query_string"].decode().partition("&")[0]


def wish(scope: dict[str, Any]) -> str:
    """What the consumer is to do with the handshake."""
    return scope["query_string"].decode().partition("&")[2]


class Talk(AsyncWebsocketConsumer):
    throttle_scope = "chat"

    async def connect(self) -> None:
        if wish(self.scope) == "deny":
            raise DenyConnection
        if wish(self.scope) == "slow":
            await asyncio.sleep(SLOW)
        await self.accept()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == "fail":
            raise ZeroDivisionError
        if text_data == "close":
            await self.close(CLOSED, "enough")
            return
        if text_data == "talk":
            for _ in range(TALK):
                await self.send("on and on")
                await asyncio.sleep(0.01)
        await self.send(text_data, bytes_data)


class Chat(ThrottledConsumerMixin, Talk):
    pass


class GroupChat(Chat):
    groups = ["news"]


class BrowserChat(Chat):
    refuse = "frame"


class SyncChat(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"

    def connect(self) -> None:
        if wish(self.scope) == "deny":
            raise DenyConnection
        if wish(self.scope) == "slow":
            time.sleep(SLOW)
        self.accept()

    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == "fail":
            raise ZeroDivisionError
        if text_data == "close":
            self.close(CLOSED, "enough")
            return
        if text_data == "talk":
            for _ in range(TALK):
                self.send("on and on")
                time.sleep(0.01)
        self.send(text_data, bytes_data)


SOCKETS = {
    "chat": Chat.as_asgi(), "browser": BrowserChat.as_asgi(), "group": GroupChat.as_asgi(),
    "sync": SyncChat.as_asgi(), "middleware": ThrottleMiddleware(Talk.as_asgi(), scope="chat"),
}  # fmt: skip
urls = URLRouter([path(name, app) for name, app in SOCKETS.items()])
application = ProtocolTypeRouter({"http": get_asgi_application(), "websocket": urls})
print("tests.served is loaded by process", os.getpid(), flush=True)
