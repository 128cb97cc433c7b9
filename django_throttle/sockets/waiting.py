"""A wait that can be cut short from outside, without a task of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

# What a wait comes to that was cut short.
CUT: Final[Any] = object()


class Waiting:
    """What one task waits for."""

    __slots__ = ("_cut", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cut = False

    async def on(self, work: Awaitable[Any]) -> Any:
        """Wait for this; returns CUT when ``cut`` is called meanwhile."""
        task = self._task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            return await work
        except asyncio.CancelledError:
            # As asyncio.timeout does it: a cancellation that is not ours goes on.
            if not self._cut or task is None or task.uncancel() > before:
                raise
            return CUT
        finally:
            self._task, self._cut = None, False

    def cut(self) -> None:
        """End the wait, if there is one."""
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel()
