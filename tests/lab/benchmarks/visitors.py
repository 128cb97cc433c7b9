"""Sockets of users without a server: a consumer with the mixin and the same without, and the rules that guard it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from django_throttle.channels import ThrottledConsumerMixin

CAP: dict[str, Any] = {"limit": 5, "algorithm": "concurrency", "events": ["connection"], "key": "user"}
RATE: dict[str, Any] = {"rate": "1000000/s", "events": ["connect"], "key": "user"}
OWN: dict[str, Any] = {"rate": "1000000/s", "events": ["message"], "key": "connection", "algorithm": "gcra"}
SHARED: dict[str, Any] = {"rate": "1000000/s", "events": ["message"], "key": "user"}
# What guards a socket, by the name of the kind; without the mixin nothing can.
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {},
    "cap": {"cap": CAP},
    "door": {"cap": CAP, "rate": RATE},
    "own": {"own": OWN},
    "shared": {"shared": SHARED},
    "both": {"own": {**OWN, "events": ["message", "send"]}, "shared": {**SHARED, "events": ["message", "send"]}},
}


class Plain(AsyncWebsocketConsumer):
    """Says what it is told."""

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


class Guarded(ThrottledConsumerMixin, Plain):
    throttle_scope = "bench"


def under(kind: str) -> None:
    """Put the rules of this kind in force, in a process that has not asked for any yet."""
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": RULES[kind]}


def consumer(kind: str) -> Any:
    """The application of this kind."""
    return (Plain if kind == "plain" else Guarded).as_asgi()


class Visitor:
    """One user's socket."""

    __slots__ = ("_app", "_inbox", "_outbox", "_scope", "_task")

    def __init__(self, app: Any, number: int) -> None:
        user = SimpleNamespace(is_authenticated=True, is_active=True, pk=number)
        self._scope = {"type": "websocket", "path": "/bench", "client": ["203.0.113.9", 1], "headers": [], "user": user}
        self._app = app
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Be accepted."""
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(self._scope, self._inbox.get, self._outbox.put))
        assert (await self._outbox.get())["type"] == "websocket.accept"

    async def say(self, text: str) -> None:
        """Send a message and wait for its answer."""
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})
        assert (await self._outbox.get())["text"] == text

    async def close(self) -> None:
        assert self._task is not None
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self._task


def resident_bytes() -> int:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
