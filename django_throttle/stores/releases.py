"""Leases that are given back on an event loop travel together, a batch at a time, so that decisions come between.

A crowd that leaves at once would take every connection to Redis, and each of its calls a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from django_throttle.stores.batch import Alongside
from django_throttle.stores.link import Call

MOST: Final = 100  # calls in one batch: they take Redis about a millisecond

Waiting = tuple[Sequence[Call], "asyncio.Future[list[Any]]"]


class Releases:
    """Sends the calls of each loop in turn with ``send``, one batch at a time."""

    def __init__(self, send: Callable[[Sequence[Call]], Awaitable[list[Any]]]) -> None:
        self._send = send
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Waiting]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself holds tasks only weakly

    async def send(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to these calls; raises what sending raised, or Alongside it."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = deque()
        future: asyncio.Future[list[Any]] = loop.create_future()
        waiting.append((calls, future))
        if len(waiting) == 1:  # else the task takes it along
            task = loop.create_task(self._travel(waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _travel(self, waiting: deque[Waiting]) -> None:
        """The first stays in the queue until its batch is answered, so that nobody else begins to send."""
        while waiting:
            some = _load(waiting)
            try:
                replies = iter(await self._send([call for calls, _ in some for call in calls]))
            except BaseException as error:
                _fail(waiting, error)
                if not isinstance(error, Exception):
                    raise
                return
            for calls, future in some:
                found = [next(replies) for _ in calls]
                if not future.done():
                    future.set_result(found)
                waiting.popleft()


def _load(waiting: deque[Waiting]) -> list[Waiting]:
    load: list[Waiting] = []
    size = 0
    for one in waiting:
        size += len(one[0])
        if load and size > MOST:
            break
        load.append(one)
    return load


def _fail(waiting: deque[Waiting], error: BaseException) -> None:
    """All that wait, as each would wait in vain for as long; the first of them reports it."""
    is_told = False
    while waiting:
        _, future = waiting.popleft()
        if future.done():
            continue
        if not isinstance(error, Exception):
            future.cancel()
        else:
            future.set_exception(Alongside(error) if is_told else error)
        is_told = True
