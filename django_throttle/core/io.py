"""Input and output for logic that is written once, as coroutines, for synchronous and asynchronous code.

Such a coroutine awaits only the methods of its ``io`` and other coroutines that do the same. A blocking ``io`` never
suspends the coroutine, and ``run`` returns its result. With the ``io`` of an event loop, the coroutine is awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from django_throttle.core.commands import StoreCommand

T = TypeVar("T")


class Io(Protocol):
    """Store commands, pauses and calls of other functions, for coroutines to await."""

    def execute(self, command: StoreCommand[T]) -> Awaitable[T]:
        """Have the store execute a command, and return its reply. Raise StoreError if the store fails."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait ``seconds``."""

    def call(self, function: Callable[[], T], async_twin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Call ``function``, or await ``async_twin()`` on an event loop, and return the result."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose ``io`` blocks, and return its result. Raise RuntimeError if it awaits an event loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # PEP 479 replaces a StopIteration from a called function
            raise error.__cause__ from None
        raise
    work.close()
    raise RuntimeError("this coroutine was run without an event loop, and awaits one")
