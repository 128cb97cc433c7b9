"""Work that may wait for a database, a cache or a file, on a thread that nobody else waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it neither on the event loop nor on the one thread that all synchronous consumers share.

    No request ends on that thread, so its connections to databases are looked at as at the end of one.
    """

    def closing() -> T:
        close_old_connections()
        try:
            return work(*args, **kwargs)
        finally:
            close_old_connections()

    return await sync_to_async(closing, thread_sensitive=False)()
