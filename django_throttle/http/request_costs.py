"""Resource use of a request, recorded for its route when the response is closed, and logged if it is too high.

Responses refer to their closers, so closers must not refer to the response: the cycle would delay its collection.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from django_throttle.costs.meter import Meter, current_meter
from django_throttle.http.request_state import RequestState, scope_of_match
from django_throttle.observe import cost_log, recorders

Part = TypeVar("Part")


def close_meter(state: RequestState, answer: object = None) -> None:
    """Stop the meter, and record its figures for the route. A second call changes nothing.

    ``answer`` is the response, or None if there is none.
    """
    meter = state.meter
    if not meter.stop(state.ended_at, state.ended_cpu):
        return
    if current_meter.get() is meter:  # otherwise another request has begun in this thread
        current_meter.set(None)
    meter.bytes = meter.bytes or _size(answer)
    scope = state.routed.scope or (scope_of_match(state.match) if state.match else "")
    if scope:
        if (recorder := recorders.current) is not None:
            recorder.record_request(scope, meter)
        cost_log.report(scope, (state.method or "").upper(), meter)


def _size(response: Any) -> int:
    """Return the size of a response in bytes: its content's, or its Content-Length if it streams. Else return 0."""
    if response is None or not getattr(response, "is_rendered", True):
        return 0
    if not response.streaming:
        return len(response.content)
    length = response.get("Content-Length", "")
    return int(length) if length.isdecimal() else 0


def watch_stream(response: Any, meter: Meter, on_failure: Callable[[], object]) -> None:
    """Count the bytes of a streaming response as they are sent, unless it has a Content-Length.

    Call ``on_failure`` if the content raises an error, because ASGI handlers then do not close the response.
    """
    has_length = response.has_header("Content-Length")
    count = (lambda part: part) if has_length else partial(_counted, meter, response.charset)
    parts = response._iterator
    response._iterator = (_AsyncParts if response.is_async else _parts)(parts, count, on_failure)


def _counted(meter: Meter, charset: str, part: Part) -> Part:
    meter.bytes += len(part if isinstance(part, (bytes, memoryview)) else str(part).encode(charset))
    return part


def _parts(
    parts: Iterator[object], count: Callable[[object], object], on_failure: Callable[[], object]
) -> Iterator[object]:
    try:
        yield from map(count, parts)
    except Exception:
        on_failure()
        raise


class _AsyncParts(AsyncIterator[object]):
    def __init__(
        self, parts: AsyncIterable[object], count: Callable[[object], object], on_failure: Callable[[], object]
    ) -> None:
        self._parts, self._count, self._on_failure = aiter(parts), count, on_failure

    async def __anext__(self) -> object:
        try:
            return self._count(await anext(self._parts))
        except StopAsyncIteration:
            raise
        except BaseException:
            self._on_failure()
            raise
