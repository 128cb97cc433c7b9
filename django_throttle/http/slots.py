"""Slots of requests in flight. Each is released once: by the entry point, or by the end of a streaming response."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.http import StreamingHttpResponse

from django_throttle.core.decide import release_lease
from django_throttle.core.decision import Lease
from django_throttle.core.io import Io, run
from django_throttle.local.leases import Leases
from django_throttle.runtime import is_on_event_loop, spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo


class Slot:
    """Lease that is released once. If its response is never closed, it is released when it is garbage-collected."""

    __slots__ = ("_leases", "lease")

    def __init__(self, lease: Lease, leases: Leases) -> None:
        self.lease: Lease | None = lease
        self._leases = leases

    def take(self) -> Lease | None:
        """Return the lease, and give up its ownership. Return None from the second call on."""
        lease, self.lease = self.lease, None
        return lease

    def drop(self) -> None:
        """Schedule the release of the lease, without waiting for a store."""
        lease = self.take()
        if lease is not None:
            self._leases.release_later(lease)

    __del__ = drop


async def release_slots(io: Io, slots: Sequence[Slot]) -> None:
    """Release the leases of slots. A second call changes nothing."""
    for slot in slots:
        await release_lease(io, slot.take())


def hold_until_closed(request: Any, response: Any, slots: Sequence[Slot]) -> None:
    """Release the slots when the content was sent, when sending failed, or at the latest when the response is closed.

    If a server sends a file by itself, only the close of the response shows the end. Django may answer 304 in place of
    a file, and then closes the request but not the file's response. If sending fails, neither may be closed. So only
    the response refers to the slots, without a reference cycle, and they are released when it is garbage-collected.
    Under ASGI, exceptions refer to each other and to the response, so the slots are released when the request ends.
    """
    leases = [slot.lease for slot in slots]
    response._resource_closers.append(partial(_release, slots))
    request.close = partial(_close_request, weakref.ref(request), request.__dict__.get("close"), leases)
    release_at_end = _arelease_at_end if response.is_async else _release_at_end
    parts = release_at_end(response._iterator, slots)
    # Set by the base class, because otherwise servers could no longer send a FileResponse by themselves.
    StreamingHttpResponse._set_streaming_content(response, parts)  # type: ignore[attr-defined]
    _drop_with_request(slots)


def _release_at_end(content: Iterator[bytes], slots: Sequence[Slot]) -> Iterator[bytes]:
    try:
        yield from content
    except GeneratorExit:  # closing the response releases the slots, not collecting this generator
        raise
    except BaseException:
        _release(slots)
        raise
    _release(slots)


async def _arelease_at_end(content: AsyncIterator[bytes], slots: Sequence[Slot]) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    except BaseException:  # also if the event loop cancels it; a second cancellation does not interrupt this
        await asyncio.wait({spawn(release_slots(LoopIo(get_store()), slots))})
        raise
    await release_slots(LoopIo(get_store()), slots)


def _drop_with_request(slots: Sequence[Slot]) -> None:
    """Under ASGI, release the slots when the thread of the request ends. Django ends that thread with the request.

    The end of a task is no sign, because the task may be the server's. The collection of the thread's executor is none
    either: if the client disconnects early, exceptions that refer to each other keep the executor alive.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is None:
        return
    if not is_on_event_loop():
        _drop_with_thread(slots)
    elif executor := SyncToAsync.context_to_thread_executor.get(context):
        executor.submit(_drop_with_thread, slots)


class _ThreadSlots(list[Slot]):
    """Slots that a thread holds until it ends."""

    def __del__(self) -> None:
        for slot in self:
            slot.drop()


_local: Final = threading.local()


def _drop_with_thread(slots: Sequence[Slot]) -> None:
    held: _ThreadSlots = _local.__dict__.setdefault("slots", _ThreadSlots())
    held[:] = [*(slot for slot in held if slot.lease), *slots]


def _close_request(request: weakref.ref[Any], close: Callable[[], None] | None, leases: Sequence[Lease | None]) -> None:
    """Close a request by the replaced ``close``, or by its own if that is None, and release the leases."""
    try:
        if close is not None:
            close()
        elif (referent := request()) is not None:
            type(referent).close(referent)
    finally:
        for lease in leases:  # a second release changes nothing
            run(release_lease(BlockingIo(get_store()), lease))


def _release(slots: Sequence[Slot]) -> None:
    run(release_slots(BlockingIo(get_store()), slots))
