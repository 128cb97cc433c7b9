"""The first reading of a process: whoever asks waits, but no longer than until a moment that all share."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from time import monotonic

from django_throttle.rulebook.snapshot import Snapshot


class First:
    """What the thread that reads knows so far: the rules of settings, and then all of them.

    The moment is ``seconds`` after the first call of ``wait`` or ``await_``; there is none where that one gave None.
    Both return all rules, or after it those of settings, and raise what the reading raises.
    """

    def __init__(self) -> None:
        self._settings, self._all = _future(), _future()
        self._ends: float | None = None

    def have(self, settings: Snapshot) -> None:
        """The rules of settings, while the database is asked for the others."""
        _resolve(self._settings, settings)

    def know(self, rules: Snapshot) -> None:
        """All of them."""
        _resolve(self._all, rules)
        _resolve(self._settings, rules)

    def fail(self, error: BaseException) -> None:
        """There are none, because of this."""
        for future in (self._all, self._settings):
            if not future.done():
                future.set_exception(error)

    def wait(self, seconds: float | None) -> Snapshot:
        """Wait for the rules."""
        wait([self._all], self._left(seconds))
        return (self._all if self._all.done() else self._settings).result()

    async def await_(self, seconds: float | None) -> Snapshot:
        """Wait without blocking the event loop, nor for any thread that others may keep busy."""
        waiting = asyncio.wrap_future(self._all)
        await asyncio.wait([waiting], timeout=self._left(seconds))
        if waiting.done():
            return waiting.result()
        waiting.cancel()  # so that it is told nothing when the loop is closed by then
        return await asyncio.wrap_future(self._settings)

    def _left(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        if self._ends is None:
            self._ends = monotonic() + seconds
        return max(0.0, self._ends - monotonic())


def _future() -> Future[Snapshot]:
    future: Future[Snapshot] = Future()
    future.set_running_or_notify_cancel()  # so that a caller who is cancelled takes it from nobody else
    return future


def _resolve(future: Future[Snapshot], found: Snapshot) -> None:
    if not future.done():
        future.set_result(found)
