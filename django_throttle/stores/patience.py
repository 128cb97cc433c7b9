"""How long a call on an event loop is waited for, on a loop that other code may bring to a stand.

A loop that stood still past a call's deadline finds the reply and the deadline at the same moment, and asyncio
lets the deadline win. Here such a loop first reads what has come meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django_throttle.stores.failures import LoopBlocked

LATE: Final = 0.02  # a loop that runs ends a wait sooner than this
GRACE: Final = 0.02  # for a loop that did not, to read what is there


class Patience:
    """``async with`` it: raises TimeoutError at a moment of the loop's clock, LoopBlocked when the loop stood still."""

    __slots__ = ("_end", "_is_late", "_timeout", "_until")

    def __init__(self, until: float) -> None:
        self._until = until
        self._timeout = asyncio.timeout(None)
        self._is_late = False

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._end = asyncio.get_running_loop().call_at(self._until, self._run_out)

    async def __aexit__(self, *error: object) -> None:
        self._end.cancel()
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError as late:
            if self._is_late:
                raise LoopBlocked("the event loop was busy with something else") from late
            raise

    def _run_out(self) -> None:
        now = asyncio.get_running_loop().time()
        self._is_late = now > self._until + LATE
        self._timeout.reschedule(now + GRACE * self._is_late)


@contextmanager
def heed_cancellation() -> Iterator[None]:
    """Raise a cancellation that the block has swallowed.

    redis-py waits with asyncio.wait_for, which until Python 3.12 loses one that comes as it is done.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
