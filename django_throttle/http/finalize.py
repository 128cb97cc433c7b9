"""The end of a request: its header fields, refunds by its status, and the release of its slots.

A response that streams holds its slots until all has been sent, or until it is closed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from asgiref.sync import SyncToAsync, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import refund_for_status
from django_throttle.core.decide import Flow, after_status, refund_charges, release_lease
from django_throttle.core.decision import Lease
from django_throttle.core.headers import EPOCH, OFF, may_see, policies, rate_limit, visible, x_rate_limit
from django_throttle.http.request_state import RequestState, Slot, state_of
from django_throttle.lifecycle import is_on_event_loop
from django_throttle.log_throttling import LogThrottle
from django_throttle.stores import get_store
from django_throttle.stores.base import arun, run

_STATUSES: Final = (
    (Http404, HTTPStatus.NOT_FOUND),
    (PermissionDenied, HTTPStatus.FORBIDDEN),
    ((BadRequest, SuspiciousOperation), HTTPStatus.BAD_REQUEST),
    (Exception, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def status_of(answer: Any) -> Any:
    """The status of a response; of content, a success unless it says another first, as an attribute or in a tuple."""
    first = answer[0] if isinstance(answer, tuple) and answer else HTTPStatus.OK
    return getattr(answer, "status_code", first)


def status_of_error(error: BaseException) -> int | None:
    """What Django, or the framework that raised it, makes of an error; None when nobody was left to be answered."""
    found = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    said = getattr(error, "status_code", None)
    return said if isinstance(said, int) else found


logger = logging.getLogger("django_throttle")

Response = TypeVar("Response")

_log_throttle: Final = LogThrottle()


def finish(request: HttpRequest, response: Response) -> Response:
    """Add the header fields, refund charges that this answer's status does not count, and release slots.

    A second time changes nothing. A response that streams holds its slots until it is closed. What is no response
    yet, because a framework is to make one of it, is a success unless it has another status.
    """
    if owed := _finish_flow(request, response, state_of(request)):
        run(owed, get_store())
    return response


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish without blocking the event loop."""
    if owed := _finish_flow(request, response, state_of(request)):
        await arun(owed, get_store())
    return response


def finish_without_waiting(request: HttpRequest, response: Response) -> Response:
    """Finish a view's response; where an event loop runs, which must not be blocked, refund and release soon after.

    Whoever calls a view with this request again makes another call.
    """
    state = state_of(request)
    state.costs.clear()
    if owed := _finish_flow(request, response, state):
        if is_on_event_loop():
            _start_task(arun(owed, get_store()))
        else:
            run(owed, get_store())
    return response


def abandon(request: HttpRequest, status: int | None) -> None:
    """Refund and release where there is no response, but an error from which somebody else may make one.

    ``status`` is that of the error. It is None when the client has gone: it saw no answer, so the call stays charged.
    """
    state = state_of(request)
    run(_refund_and_release(state, status), get_store())
    state.has_finisher = False


async def aabandon(request: HttpRequest, status: int | None) -> None:
    """Abandon without blocking the event loop; a second cancellation does not end it.

    In the thread of this request, because a synchronous view goes on there when its client has gone: until it
    returns, it is in flight.
    """
    await asyncio.wait({_start_abandoning(request, status)})


def abandon_without_waiting(request: HttpRequest, status: int | None) -> None:
    """Abandon; where an event loop runs, a little later."""
    state = state_of(request)
    (_start_abandoning if (state.slots or state.receipts) and is_on_event_loop() else abandon)(request, status)


def _start_abandoning(request: HttpRequest, status: int | None) -> asyncio.Future[None]:
    return _start_task(sync_to_async(abandon)(request, status))


async def arelease_slots(request: HttpRequest) -> None:
    """Release what is held, whatever the answer will be; its status decides what is refunded, later."""
    await arun(_release_flow(_take_slots(state_of(request))), get_store())


def _finish_flow(request: HttpRequest, response: Any, state: RequestState) -> Flow[None] | None:
    """Add the header fields; returns what is then to be asked of the store, None where nothing is."""
    state.has_finisher = False
    if not isinstance(response, HttpResponseBase):
        return _refund_and_release(state, status_of(response)) if state.slots or state.receipts else None
    if decisions := getattr(request, "throttle_decisions", ()):
        for name, value in header_fields(decisions, state.is_known, response.status_code).items():
            response[name] = value
    if response.status_code in (429, 503) and not all(decision.allowed for decision in decisions):
        # Django would log each, and mail each 503 to the admins; observe.reports limits its lines.
        response._has_been_logged = True  # type: ignore[attr-defined]
    if state.slots and response.streaming:
        _hold_until_closed(request, response, _take_slots(state))
    return _refund_and_release(state, response.status_code) if state.slots or state.receipts else None


def _refund_and_release(state: RequestState, status: Any) -> Flow[None]:
    receipts, state.receipts = state.receipts, []
    yield from _release_flow(_take_slots(state))
    for receipt in receipts if status is not None else ():
        done = yield from refund_charges(refund_for_status(receipt, status))
        if not done and _log_throttle.due("refund"):
            logger.warning(
                "Redis does not answer: calls that count_on excludes could not be refunded, and stay charged until "
                "their windows end"
            )


def _take_slots(state: RequestState) -> Sequence[Slot]:
    slots, state.slots = state.slots, []
    return slots


def _release_flow(slots: Sequence[Slot]) -> Flow[None]:
    for slot in slots:
        yield from release_lease(slot.take())


def header_fields(
    decisions: Sequence[Decision], is_known: Callable[[], bool], status: int = HTTPStatus.OK
) -> dict[str, str]:
    """RateLimit, RateLimit-Policy and X-RateLimit-*, as the settings ask for, from the decisions that were made.

    ``is_known`` says whether the client is logged in; only asked where it makes a difference, as it may take a query.
    ``status`` is the answer's, by which some rules count.

    A client is told of its own budgets only: by its address, its session, the key or the account that it has proved
    to hold. Under what it merely says, as the name in a login form, there may be somebody else.
    """
    settings = conf()
    if settings.RATELIMIT_HEADERS == settings.X_RATELIMIT_HEADERS == OFF:
        return {}
    final = [after_status(decision, status) if decision.receipt else decision for decision in decisions]
    found = policies(visible(final, partial(may_see, settings.TELL_KEYS, is_known)))
    said = rate_limit(found, settings.RATELIMIT_HEADERS)
    if settings.X_RATELIMIT_HEADERS == OFF:
        return said
    return said | x_rate_limit(found, timezone.now().timestamp() if settings.X_RATELIMIT_HEADERS == EPOCH else 0.0)


def _hold_until_closed(request: Any, response: Any, slots: Sequence[Slot]) -> None:
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


def _start_task(ending: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    """Await this in a task of its own on the running event loop, so that no cancellation ends it."""
    task = asyncio.ensure_future(ending)
    _endings.add(task)  # the loop itself holds tasks only weakly
    task.add_done_callback(_endings.discard)
    return task


_endings: Final[set[asyncio.Future[None]]] = set()


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
        await asyncio.wait({_start_task(arun(_release_flow(slots), get_store()))})
        raise
    await arun(_release_flow(slots), get_store())


def _drop_with_request(slots: Sequence[Slot]) -> None:
    """Under ASGI, release the slots when the thread of the request ends, which Django ends with the request.

    Not when a task ends: it may be the server's. Not when the thread's executor is collected: if the client leaves
    before the response is made, exceptions that refer to each other keep it alive.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _drop_with_thread(slots)
    else:
        executor = SyncToAsync.context_to_thread_executor.get(context)
        if executor is not None:
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
            run(release_lease(lease), get_store())


def _release(slots: Sequence[Slot]) -> None:
    run(_release_flow(slots), get_store())
