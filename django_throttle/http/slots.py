"""Slots of requests in flight: released once, by the entry point, or by the end of a response that streams."""

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
    """A lease that is released once; at the latest when it is collected, as of a response that was never closed."""

    __slots__ = ("_leases", "lease")

    def __init__(self, lease: Lease, leases: Leases) -> None:
        self.lease: Lease | None = lease
        self._leases = leases

    def take(self) -> Lease | None:
        """The lease; None from the second time on."""
        lease, self.lease = self.lease, None
        return lease

    def drop(self) -> None:
        """Have the lease released a little later, without waiting for a store."""
        lease = self.take()
        if lease is not None:
            self._leases.release_later(lease)

    __del__ = drop


async def release_slots(io: Io, slots: Sequence[Slot]) -> None:
    """Give back what these hold; a second time changes nothing."""
    for slot in slots:
        await release_lease(io, slot.take())


def hold_until_closed(request: Any, response: Any, slots: Sequence[Slot]) -> None:
    """Release the slots when all has been sent or sending failed, at the latest when the response is closed.

    When a server sends a file by itself, only closing the response tells that it is sent. Django may answer 304 in
    place of a file, and then closes the request but not the file's response. When sending fails, nothing may be
    closed, so only the response refers to the slots, in no reference cycle: they are released when it is collected.
    Under ASGI, exceptions refer to each other and to the response, so the slots are released when the request ends.
    """
    leases = [slot.lease for slot in slots]
    response._resource_closers.append(partial(_release, slots))
    request.close = partial(_close_request, weakref.ref(request), request.__dict__.get("close"), leases)
    to_the_end = _ato_the_end if response.is_async else _to_the_end
    parts = to_the_end(response._iterator, slots)
    # By the base class: a FileResponse would no longer be a file that a server can send by itself.
    StreamingHttpResponse._set_streaming_content(response, parts)  # type: ignore[attr-defined]
    _drop_with_request(slots)


def _to_the_end(content: Iterator[bytes], slots: Sequence[Slot]) -> Iterator[bytes]:
    try:
        yield from content
    except GeneratorExit:  # closing the response releases them, not collecting this generator
        raise
    except BaseException:
        _release(slots)
        raise
    _release(slots)


async def _ato_the_end(content: AsyncIterator[bytes], slots: Sequence[Slot]) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    except BaseException:  # also where the event loop ends it; a second cancellation does not end this
        await asyncio.wait({spawn(release_slots(LoopIo(get_store()), slots))})
        raise
    await release_slots(LoopIo(get_store()), slots)


def _drop_with_request(slots: Sequence[Slot]) -> None:
    """Under ASGI, release the slots when the thread of the request ends, which Django ends with the request.

    Not when a task ends: it may be the server's. Not when the thread's executor is collected: if the client leaves
    before the response is made, exceptions that refer to each other keep it alive.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is None:
        return
    if not is_on_event_loop():
        _drop_with_thread(slots)
    elif executor := SyncToAsync.context_to_thread_executor.get(context):
        executor.submit(_drop_with_thread, slots)


class _ThreadSlots(list[Slot]):
    """The slots that a thread holds until it ends."""

    def __del__(self) -> None:
        for slot in self:
            slot.drop()


_of_thread: Final = threading.local()


def _drop_with_thread(slots: Sequence[Slot]) -> None:
    held: _ThreadSlots = _of_thread.__dict__.setdefault("slots", _ThreadSlots())
    held[:] = [*(slot for slot in held if slot.lease), *slots]


def _close_request(request: weakref.ref[Any], close: Callable[[], None] | None, leases: Sequence[Lease | None]) -> None:
    """``close`` is what was in this one's place; without it the request's own."""
    try:
        if close is not None:
            close()
        elif (found := request()) is not None:
            type(found).close(found)
    finally:
        for lease in leases:  # a second time changes nothing
            run(release_lease(BlockingIo(get_store()), lease))


def _release(slots: Sequence[Slot]) -> None:
    run(release_slots(BlockingIo(get_store()), slots))
