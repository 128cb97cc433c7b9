"""How logic of several steps reaches the outside: coroutines with an ``io``, written once for sync and async.

A coroutine awaits nothing but its ``io`` and other such coroutines. With an ``io`` that blocks it never suspends, and
``run`` returns its result; with one of an event loop it is awaited like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from django_throttle.core.commands import Command

T = TypeVar("T")


class Io(Protocol):
    """What a step can do besides compute."""

    def execute(self, command: Command) -> Awaitable[Any]:
        """Have the store execute a command, and return its reply. Raises StoreError."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait for so many seconds."""

    def call(self, function: Callable[[], T], async_twin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Return what a function returns, or its asynchronous twin where an event loop runs."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose ``io`` blocks, and return its result. Raises RuntimeError if it awaits an event loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # of a called function: Python made a RuntimeError of it
            raise error.__cause__ from None
        raise
    work.close()
    raise RuntimeError("this coroutine was run without an event loop, and awaits one")
