"""Serves a request for the doors of HTTP, written once for sync and async: decides, answers or refuses, finishes.

Bytes that a view reads from the server's own input, past Django's request, are charged here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from django.http import HttpRequest, HttpResponse

from django_throttle import limiter
from django_throttle.call_facts import Facts, Who
from django_throttle.core import Decision
from django_throttle.core.io import Io
from django_throttle.exceptions import Refused
from django_throttle.http.finalize import afinish_failed, finish, finish_failed, status_of_error
from django_throttle.http.refusal import refusal
from django_throttle.http.request_state import RequestState, django_request, state_of
from django_throttle.http.request_throttle import RequestThrottle
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo

WSGI_INPUT: Final = "wsgi.input"
# Where a view asks for everything at once, this much is read, and charged, at a time.
READ_BYTES: Final = 65_536


def meter_input(request: HttpRequest, charged: int) -> None:
    """Have the rules that count bytes charge what the view reads past Django's request, beyond ``charged`` bytes.

    A WSGI server's own input has what was sent in chunks, and may have more than Content-Length says: its size is not
    known before it is read. Reading it raises Refused for what is too much.
    """
    stream = request.META.get(WSGI_INPUT)
    if stream is not None and not isinstance(stream, _Metered):
        request.META[WSGI_INPUT] = _Metered(stream, charged, partial(_charge, request))


def _charge(request: HttpRequest, size: int) -> None:
    """Each rule once, as the last door to apply it knows the caller; what was read stays charged, come what may."""
    state = state_of(request)
    for facts in {id(one): one for one in state.byte_facts.values()}.values():
        only = frozenset(name for name, one in state.byte_facts.items() if one is facts)
        call = facts.but(size=size, charged=None, only=only, early=False)
        decision = limiter.admitted(limiter.decide(call))
        state.note_read(decision, facts)


class _Metered:
    """A server's input, in PEP 3333's shape; what is read of it beyond what was charged before is charged then."""

    def __init__(self, stream: Any, charged: int, charge: Callable[[int], None]) -> None:
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


async def serve(
    request: HttpRequest,
    who: Who,
    decide: Callable[[HttpRequest, Any, RequestState], Any],
    view: Callable[[HttpRequest], Any],
    instead: Callable[[Io], Awaitable[HttpResponse | None]] | None = None,
    *,
    awaits: bool,
) -> Any:
    """Answer a request by its ``view``, or refuse it; the first door that it comes to finishes it.

    Where it ``awaits``, what ``decide`` and ``view`` return is awaited; else nothing is, and ``run`` returns the
    response. ``decide`` returns the facts of the call of this caller, and the decision. A refusal that the view lets
    pass, of something it called, is one of the request. ``instead`` may answer an allowed request in the view's place.
    """
    state = state_of(request)
    finishes = state.become_finisher(who)
    if "throttle" not in request.__dict__:
        request.__dict__["throttle"] = RequestThrottle(state)
    try:
        call, decision = await decide(request, who, state) if awaits else decide(request, who, state)
        response = refusal_by_rules(who.subject, state, call, decision)
        if response is None and instead is not None:
            response = await instead((LoopIo if awaits else BlockingIo)(get_store()))
        if response is None:
            response = await view(request) if awaits else view(request)
    except Refused as error:
        if not finishes:
            raise
        response = refusal_of_error(who.subject, error)
    except BaseException as error:
        if finishes and awaits:
            await afinish_failed(request, status_of_error(error))
        elif finishes:
            finish_failed(request, status_of_error(error))
        raise
    if finishes and (owed := finish(request, response, state)):
        await owed((LoopIo if awaits else BlockingIo)(get_store()))
    return response


def refusal_by_rules(request: Any, state: RequestState, call: Facts, decision: Decision) -> HttpResponse | None:
    """Note what was decided under the rules that match a request: None where it is allowed, else its refusal."""
    state.note(decision, call)
    if state.byte_facts:
        meter_input(django_request(request), call.size)
    return None if decision.allowed else refusal(request, decision)


def refusal_of_error(request: Any, error: Refused) -> HttpResponse:
    """The response to a refusal of something that the view called."""
    state_of(django_request(request)).note(error.decision)
    return refusal(request, error.decision)
