"""What a store is, and the ``io`` by which code with and without an event loop asks one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from django_throttle.core.commands import Command, Release
from django_throttle.core.control_messages import ControlMessage
from django_throttle.core.io import Io
from django_throttle.local.leases import Leases
from django_throttle.local.limits import LocalLimits
from django_throttle.stores.refusal_cache import RefusalCache

T = TypeVar("T")


class Control(Protocol):
    """Control messages between processes; an ident is named by its tag."""

    def give(self, messages: Iterable[ControlMessage]) -> None: ...

    def resend(self) -> None: ...

    def fetch(self) -> dict[ControlMessage, float]: ...

    def tag(self, ident: str) -> str: ...


class Store(Protocol):
    """Where counters live. Executes one command and answers it, or raises StoreError.

    ``is_remote`` where other processes share it, and it may not answer. ``is_costly`` where asking takes a round
    trip: then ``refusal_cache`` has refusals, and units are bought ahead. ``local_limits`` decide
    what dampers refuse, and hold what is bought. ``leases`` are those that this process holds, ``control`` what
    other processes ask of it.
    """

    refusal_cache: RefusalCache
    local_limits: LocalLimits
    leases: Leases

    @property
    def is_remote(self) -> bool: ...

    @property
    def is_costly(self) -> bool: ...

    @property
    def control(self) -> Control: ...

    def execute(self, command: Command[T]) -> T: ...

    async def aexecute(self, command: Command[T]) -> T: ...

    def release_soon(self, command: Release) -> None: ...


class StoreIo(Io, Protocol):
    """An ``io`` whose commands go to this store."""

    @property
    def store(self) -> Store: ...


class BlockingIo:
    """The ``io`` of synchronous code: nothing suspends. See ``core.io``."""

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store

    async def execute(self, command: Command[T]) -> T:
        return self.store.execute(command)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs here

    async def call(self, function: Callable[[], T], async_twin: object) -> T:
        return function()


class LoopIo:
    """The ``io`` of code on an event loop."""

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store

    def execute(self, command: Command[T]) -> Awaitable[T]:
        return self.store.aexecute(command)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def call(self, function: object, async_twin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return async_twin()


REPLY: Final = "reply"  # the attribute of a cancellation that has the reply to the command that was on its way


class LastingIo(LoopIo):
    """The ``io`` of a decision that goes on although its caller is cancelled, as far as the store has answered.

    ``cancelled`` is the error then, which is raised when the decision is known.
    """

    __slots__ = ("cancelled",)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.cancelled: asyncio.CancelledError | None = None

    async def execute(self, command: Command[T]) -> T:
        try:
            return await self.store.aexecute(command)
        except asyncio.CancelledError as error:
            if not hasattr(error, REPLY):
                raise
            self.cancelled = error
            reply: T = getattr(error, REPLY)
            return reply
