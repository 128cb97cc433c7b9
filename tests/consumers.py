"""Consumers of every kind behind one guard each, and sockets to them without a server."""

import asyncio
from typing import Any

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer, WebsocketConsumer
from channels.testing import WebsocketCommunicator

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from tests.doors import Store

PATIENCE = 20.0
DENIAL = {"websocket.http.response": {}}
TWO_SOCKETS = {"limit": 2, "algorithm": "concurrency", "events": ["connection"], "key": "everyone"}
TWO_FRAMES = {"rate": "2/min", "events": ["message"], "key": "everyone", "algorithm": "fixed_window"}


class AsyncEcho(ThrottledConsumerMixin, AsyncWebsocketConsumer):
    throttle_scope = "chat"

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data, bytes_data)


class SyncEcho(ThrottledConsumerMixin, WebsocketConsumer):
    throttle_scope = "chat"

    def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self.send(text_data, bytes_data)


class PlainEcho(AsyncWebsocketConsumer):
    receive = AsyncEcho.receive


KINDS = {
    "async": AsyncEcho.as_asgi(),
    "sync": SyncEcho.as_asgi(),
    "middleware": ThrottleMiddleware(PlainEcho.as_asgi(), scope="chat"),
}
EVERY_KIND = pytest.mark.parametrize("app", KINDS.values(), ids=KINDS.keys())


class Client(WebsocketCommunicator):
    """Waits as long as a busy machine may take; a second, as Channels does, is less than one may stand still."""

    async def connect(self, *_: object) -> Any:
        return await super().connect(PATIENCE)

    async def receive_output(self, *_: object) -> Any:
        return await super().receive_output(PATIENCE)

    async def disconnect(self, code: int = 1000, *_: object) -> None:
        await super().disconnect(code, PATIENCE)

    async def wait(self, *_: object) -> None:
        await super().wait(PATIENCE)


def socket(app: Any = KINDS["async"], **scope: Any) -> WebsocketCommunicator:
    communicator = Client(app, "/chat")
    communicator.scope.update(scope)
    return communicator


async def opened(app: Any = KINDS["async"], **scope: Any) -> WebsocketCommunicator:
    communicator = socket(app, **scope)
    assert (await communicator.connect())[0] is True
    return communicator


async def handshake(app: Any = KINDS["async"], **scope: Any) -> list[dict[str, Any]]:
    """Everything that the server is told until the application ends."""
    communicator = socket(app, **scope)
    await communicator.send_input({"type": "websocket.connect"})
    await asyncio.wait({communicator.future}, timeout=PATIENCE)
    assert communicator.future.done()
    communicator.future.result()
    return [communicator.output_queue.get_nowait() for _ in range(communicator.output_queue.qsize())]


def held(store: Store) -> int:
    return len(store.leases)
