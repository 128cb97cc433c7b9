"""What djangochannelsrestframework's tests import as tests.communicator, which its source distribution lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from channels.testing import WebsocketCommunicator


class Communicator(WebsocketCommunicator):
    async def receive_many_json_from(self, seconds: float = 0.3) -> list[Any]:
        received = []
        while not await self.receive_nothing(timeout=seconds):
            received.append(await self.receive_json_from())
        return received


@asynccontextmanager
async def connected_communicator(consumer: Any, path: str = "/testws/") -> AsyncIterator[Communicator]:
    communicator = Communicator(consumer, path)
    connected, _ = await communicator.connect()
    assert connected
    try:
        yield communicator
    finally:
        await communicator.disconnect()
