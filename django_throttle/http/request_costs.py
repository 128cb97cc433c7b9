"""What a request has used in all, once its response is closed: counted for its route, and logged where it is too much.

A response refers to what closes it, so that must not refer to the response, which would then be collected late.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from django_throttle.conf import conf
from django_throttle.costs.meter import Meter, in_use
from django_throttle.http.request_state import RequestState, scope_of_match
from django_throttle.observe import cost_log, recorders

Part = TypeVar("Part")


def close_meter(state: RequestState, answer: object = None) -> None:
    """Stop the meter, and note what it says for the route; a second time changes nothing.

    ``answer`` is the response, where there is one.
    """
    meter = state.meter
    if not meter.stop(state.ended_at, state.ended_cpu):
        return
    if in_use.get() is meter:  # else another request has begun in this thread
        in_use.set(None)
    if not conf().METER:
        return
    meter.bytes = meter.bytes or _size(answer)
    scope = state.place.scope or (scope_of_match(state.match) if state.match else "")
    if scope:
        if (recorder := recorders.current) is not None:
            recorder.record_request(scope, meter)
        cost_log.report(scope, (state.method or "").upper(), meter)


def _size(response: Any) -> int:
    """The bytes of a response that is whole, or says how long it is."""
    if response is None or not getattr(response, "is_rendered", True):
        return 0
    if not response.streaming:
        return len(response.content)
    length = response.get("Content-Length", "")
    return int(length) if length.isdecimal() else 0


def watch_stream(response: Any, meter: Meter, failed: Callable[[], object]) -> None:
    """Have the bytes of a response that streams counted as they are sent, unless it says how many there are.

    ``failed`` is called where making them fails: a handler of ASGI then does not close the response.
    """
    is_said = response.has_header("Content-Length")
    count = (lambda part: part) if is_said else partial(_counted, meter, response.charset)
    parts = response._iterator
    response._iterator = (_AsyncParts if response.is_async else _parts)(parts, count, failed)


def _counted(meter: Meter, charset: str, part: Part) -> Part:
    meter.bytes += len(part if isinstance(part, (bytes, memoryview)) else str(part).encode(charset))
    return part


def _parts(parts: Iterator[Any], count: Callable[[Any], Any], failed: Callable[[], object]) -> Iterator[Any]:
    try:
        yield from map(count, parts)
    except Exception:
        failed()
        raise


class _AsyncParts(AsyncIterator[Any]):
    def __init__(self, parts: Any, count: Callable[[Any], Any], failed: Callable[[], object]) -> None:
        self._parts, self._count, self._failed = aiter(parts), count, failed

    async def __anext__(self) -> Any:
        try:
            return self._count(await anext(self._parts))
        except StopAsyncIteration:
            raise
        except BaseException:
            self._failed()
            raise
