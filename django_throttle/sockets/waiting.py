"""Waits that can be cut short from outside, without a task of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

# What a wait comes to that was cut short.
CUT: Final[Any] = object()


class Waiting:
    """What the tasks of one application wait for: each for one thing at a time."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def on(self, work: Awaitable[Any]) -> Any:
        """Wait for this; returns CUT when ``cut`` is called meanwhile."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        self._tasks.add(task)
        try:
            return await work
        except (asyncio.CancelledError, Exception):  # a server may have an error of its own for a frame that is cut
            # As asyncio.timeout does it: a cancellation that is not ours goes on.
            if task is None or task in self._tasks or task.uncancel() > before:
                raise
            return CUT
        finally:
            self._tasks.discard(task)

    def cut(self) -> None:
        """End all that are waited for."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            if task is not None:
                task.cancel()
