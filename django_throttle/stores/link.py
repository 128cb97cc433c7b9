"""The way to Redis: sends script calls within a deadline, and reloads scripts that Redis has lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from django_throttle.stores.clients import LoopClients, connection_settings, sync_client
from django_throttle.stores.deadline import Within
from django_throttle.stores.scripts import Script
from django_throttle.stores.wire import Wire


class Call(NamedTuple):
    """One script call."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Any]

    def by_sha(self) -> tuple[Any, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[Any, ...]:
        # EVAL runs the script and keeps it, so a lost script costs one round trip, once.
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


class Link:
    """Sends calls in one round trip, ``seconds`` at most for all of it; raises redis-py's errors."""

    def __init__(self, address: str, seconds: float, max_connections: int) -> None:
        settings = connection_settings(address)
        self.seconds = seconds
        self.client = sync_client(settings, seconds, max_connections)
        self.wire = Wire(self.client.connection_pool, max_connections, seconds / 2)
        self.loops = LoopClients(settings, seconds, max_connections)

    def send_all(self, calls: Sequence[Call], seconds: float | None = None) -> list[Any]:
        """One round trip; in a pipeline a call's error stands in place of its reply, and nothing hides a lost link."""
        if not calls:
            return []
        with Within(seconds or self.seconds):
            if len(calls) == 1:
                return [self._send(calls[0])]
            replies = self._pipeline(self.client, calls).execute(raise_on_error=False)
            for at in _lost(replies):
                replies[at] = self.client.execute_command(*calls[at].by_text())
            return list(replies)

    async def asend_all(self, calls: Sequence[Call]) -> list[Any]:
        """The same without blocking the event loop, within the decision's deadline."""
        if not calls:
            return []
        async with asyncio.timeout(self.seconds):
            with _heed_cancellation():
                return await self._asend_all(await self.loops.get(), calls)

    async def _asend_all(self, client: Any, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [await self._asend(client, calls[0])]
        replies = await self._pipeline(client, calls).execute(raise_on_error=False)
        for at in _lost(replies):
            replies[at] = await client.execute_command(*calls[at].by_text())
        return list(replies)

    def _send(self, call: Call) -> Any:
        try:
            return self.wire.call(call.by_sha())
        except NoScriptError:
            return self.wire.call(call.by_text())

    @staticmethod
    async def _asend(client: Any, call: Call) -> Any:
        try:
            return await client.execute_command(*call.by_sha())
        except NoScriptError:
            return await client.execute_command(*call.by_text())

    @staticmethod
    def _pipeline(client: Any, calls: Sequence[Call]) -> Any:
        pipeline = client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call.by_sha())
        return pipeline


@contextmanager
def _heed_cancellation() -> Iterator[None]:
    """Raise a cancellation that the block has swallowed.

    redis-py waits with asyncio.wait_for, which until Python 3.12 loses one that comes as it is done.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


def _lost(replies: Sequence[Any]) -> list[int]:
    return [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
