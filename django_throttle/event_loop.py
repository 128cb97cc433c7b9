"""Work beside an event loop: in a thread, or in a task that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` in a thread of the pool, not in the one that all synchronous consumers share.

    No request ends in that thread, so its database connections are closed as at the end of one.
    """

    def closing() -> T:
        close_old_connections()
        try:
            return work(*args, **kwargs)
        finally:
            close_old_connections()

    return await sync_to_async(closing, thread_sensitive=False)()


async def at_once_or_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` here, or again in a thread where it has to ask a database or session."""
    try:
        return work(*args, **kwargs)
    except SynchronousOnlyOperation:
        return await in_thread(work, *args, **kwargs)


def is_on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


background_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task on the running loop; asyncio logs what it raises, unless somebody waits for it after all."""
    task = asyncio.ensure_future(work)
    background_tasks.add(task)
    task.add_done_callback(background_tasks.discard)
    return task
