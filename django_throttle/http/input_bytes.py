"""Charging of bytes that a view reads from the WSGI server's input, bypassing Django's request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Final

from django.http import HttpRequest

from django_throttle import limiter
from django_throttle.core import Decision
from django_throttle.http.request_state import RequestState, state_of
from django_throttle.identity.call import Call

WSGI_INPUT: Final = "wsgi.input"
#: Size of the parts that are read, and charged, when a view reads everything at once.
READ_BYTES: Final = 65_536


def note_decision(request: HttpRequest, state: RequestState, call: Call, decision: Decision) -> Decision:
    """Note and return the decision of a request, and meter the bytes that its view will read."""
    state.note(decision, call)
    if state.byte_calls:
        meter_input(request, call.size)
    return decision


def meter_input(request: HttpRequest, charged: int) -> None:
    """Have the rules that count bytes charge what the view reads from the server's input, beyond ``charged`` bytes.

    The input of a WSGI server includes chunked content, and possibly more than Content-Length bytes. Its size is
    unknown until it is read. Reading it raises Refused beyond the limit.
    """
    stream = request.META.get(WSGI_INPUT)
    if stream is not None and not isinstance(stream, _Metered):
        request.META[WSGI_INPUT] = _Metered(stream, charged, partial(_charge, request))


def _charge(request: HttpRequest, size: int) -> None:
    """Charge each rule once, for the caller as the last entry point knows it. Bytes that were read stay charged."""
    state = state_of(request)
    for call in {id(call): call for call in state.byte_calls.values()}.values():
        only = frozenset(name for name, byte_call in state.byte_calls.items() if byte_call is call)
        read = call.with_changes(size=size, charged=None, only=only, refundable=False)
        decision = limiter.raise_if_refused(limiter.decide(read))
        state.note_read_bytes(decision, call)


class _Metered:
    """Input stream of a WSGI server (PEP 3333) that charges bytes when they are read, unless charged before."""

    def __init__(self, stream: IO[bytes], charged: int, charge: Callable[[int], None]) -> None:
        self._stream, self._charge = stream, charge
        self._left = charged

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(partial(self.read, READ_BYTES), b""))
        return self._charged(self._stream.read(size))

    def readline(self, size: int | None = -1) -> bytes:
        if size is not None and size >= 0:
            return self._charged(self._stream.readline(size))
        parts = [self.readline(READ_BYTES)]
        while parts[-1] and not parts[-1].endswith(b"\n"):
            parts.append(self.readline(READ_BYTES))
        return b"".join(parts)

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _charged(self, part: bytes) -> bytes:
        more = len(part) - self._left
        self._left = max(0, -more)
        if more > 0:
            self._charge(more)
        return part
