"""The store protocol, and the ``io`` objects that execute commands of ``core``, with or without an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from django_throttle.core.commands import Release, StoreCommand
from django_throttle.core.control_messages import ControlMessage
from django_throttle.core.io import Io
from django_throttle.local.leases import Leases
from django_throttle.local.limits import LocalLimits
from django_throttle.stores.refusal_cache import RefusalCache

T = TypeVar("T")


class Control(Protocol):
    """Control messages between processes. They name an ident by its keyed hash."""

    def dispatch(self, messages: Iterable[ControlMessage]) -> None: ...

    def resend(self) -> None: ...

    def fetch(self) -> dict[ControlMessage, float]: ...

    def ident_hash(self, ident: str) -> str: ...


class Store(Protocol):
    """Store of counters. Executes commands, or raises StoreError."""

    #: Recent refusals.
    refusal_cache: RefusalCache
    #: Dampers, and prepaid units of this process.
    local_limits: LocalLimits
    #: Leases that this process holds.
    leases: Leases

    @property
    def is_remote(self) -> bool:
        """True if other processes share the store, which may not answer."""

    @property
    def is_costly(self) -> bool:
        """True if a command takes a round trip, so that refusals are cached and units are prepaid."""

    @property
    def control(self) -> Control:
        """Control messages to and from other processes."""

    def execute(self, command: StoreCommand[T]) -> T:
        """Execute a command. Raise StoreError."""

    async def aexecute(self, command: StoreCommand[T]) -> T:
        """Execute a command without blocking the event loop. Raise StoreError."""

    def release_soon(self, command: Release) -> None:
        """Release a lease on the running event loop, without waiting."""


class StoreIo(Io, Protocol):
    """An ``io`` that sends commands to a store."""

    @property
    def store(self) -> Store: ...


class BlockingIo:
    """The ``io`` of synchronous code, which never suspends. See ``core.io``."""

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store

    async def execute(self, command: StoreCommand[T]) -> T:
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

    def execute(self, command: StoreCommand[T]) -> Awaitable[T]:
        return self.store.aexecute(command)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def call(self, function: object, async_twin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return async_twin()


REPLY: Final = "reply"  # attribute of a CancelledError with the reply to the command that was on its way


class LastingIo(LoopIo):
    """The ``io`` of a decision that is finished although its caller is cancelled, if the store has answered.

    ``cancelled`` is the CancelledError, which the caller raises after the decision.
    """

    __slots__ = ("cancelled",)

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cancelled: asyncio.CancelledError | None = None

    async def execute(self, command: StoreCommand[T]) -> T:
        try:
            return await self.store.aexecute(command)
        except asyncio.CancelledError as error:
            if not hasattr(error, REPLY):
                raise
            self.cancelled = error
            reply: T = getattr(error, REPLY)
            return reply
