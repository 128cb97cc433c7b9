"""What a request holds of concurrency rules, and until when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from django_throttle import limiter
from django_throttle.connections.registry import Registry
from django_throttle.core.decision import Lease


class Slot:
    """A lease that is given back once.

    Where nobody can do so any more, because a response was thrown away unclosed, the registry hears of it.
    """

    __slots__ = ("_leases", "lease")

    def __init__(self, lease: Lease, leases: Registry) -> None:
        self.lease: Lease | None = lease
        self._leases = leases

    def take(self) -> Lease | None:
        """The lease, the first time."""
        lease, self.lease = self.lease, None
        return lease

    def __del__(self) -> None:
        if self.lease is not None:
            self._leases.stray(self.lease)


def hold_until_closed(request: Any, response: Any, slots: Sequence[Slot]) -> None:
    """Give the slots back when all has been sent, at the latest when the response is closed.

    A file that the server sends by itself is only known to be sent by its close. Django closes the request with
    whatever response it ends up with: a 304 in place of a file, whose own response nobody closes then.
    """
    give_back = partial(_give_back, slots)
    response._resource_closers.append(give_back)
    request.close = partial(_close, request.close, give_back)
    if getattr(response, "file_to_stream", None) is None:
        to_the_end = _ato_the_end if response.is_async else _to_the_end
        response.streaming_content = to_the_end(response.streaming_content, slots)


def _to_the_end(content: Iterator[bytes], slots: Sequence[Slot]) -> Iterator[bytes]:
    yield from content
    _give_back(slots)


async def _ato_the_end(content: AsyncIterator[bytes], slots: Sequence[Slot]) -> AsyncIterator[bytes]:
    async for part in content:
        yield part
    for slot in slots:
        await limiter.arelease(slot.take())


def _close(close: Callable[[], None], give_back: Callable[[], None]) -> None:
    try:
        close()
    finally:
        give_back()


def _give_back(slots: Sequence[Slot]) -> None:
    for slot in slots:
        limiter.release(slot.take())
