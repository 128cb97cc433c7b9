"""The end of a request: its header fields, refunds by its status, and the release of its slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar
from weakref import ref

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase, ResponseHeaders
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import Charges, Correct
from django_throttle.core.decide import apply_refunds, correct
from django_throttle.core.headers import (
    EPOCH,
    NAMED_VERSIONS,
    OFF,
    may_see,
    plain_fields,
    policies,
    rate_limit,
    visible,
    x_rate_limit,
)
from django_throttle.core.io import Io, run
from django_throttle.core.options import CANCELLED
from django_throttle.costs.measured import settle
from django_throttle.http.request_costs import close_meter, watch_stream
from django_throttle.http.request_state import RequestState, state_of
from django_throttle.http.slots import hold_until_closed, release_slots
from django_throttle.runtime import LogThrottle, is_on_event_loop, spawn
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo

_STATUSES: Final = (
    (Http404, HTTPStatus.NOT_FOUND),
    (PermissionDenied, HTTPStatus.FORBIDDEN),
    ((BadRequest, SuspiciousOperation), HTTPStatus.BAD_REQUEST),
    (Exception, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def status_of(answer: object) -> Any:
    """The status of a response; of content, a success unless it says another first, as an attribute or in a tuple."""
    status = getattr(answer, "status_code", None)
    if status is not None:
        return status
    return answer[0] if isinstance(answer, tuple) and answer else HTTPStatus.OK


def status_of_error(error: BaseException) -> int | None:
    """What Django, or the framework that raised it, makes of an error; None when nobody was left to be answered."""
    found = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    said = getattr(error, "status_code", None)
    return said if isinstance(said, int) else found


logger = logging.getLogger("django_throttle")

Response = TypeVar("Response")
Owed = Callable[[Io], Coroutine[Any, Any, None]]  # refunds, releases and settles

_log_throttle: Final = LogThrottle()


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish a request on an event loop, and do what is then owed."""
    if owed := finish(request, response, state_of(request)):
        await owed(LoopIo(get_store()))
    return response


def finish_failed(request: HttpRequest, status: int | None) -> None:
    """Refund and release where there is no response, but an error from which somebody else may make one.

    ``status`` is that of the error. It is None when the client has gone: it saw no answer, so the call stays charged.
    """
    state = state_of(request)
    state.has_finisher = False
    refunds = state.take_refunds(CANCELLED if status is None else status)
    run(_end(request, state, refunds, BlockingIo(get_store())))


async def afinish_failed(request: HttpRequest, status: int | None) -> None:
    """The same without blocking the event loop; a second cancellation does not end it.

    In the thread of this request, because a synchronous view goes on there when its client has gone: until it
    returns, it is in flight.
    """
    await asyncio.wait({spawn(sync_to_async(finish_failed)(request, status))})


def finish(request: HttpRequest, response: object, state: RequestState) -> Owed | None:
    """Add the header fields; return what is then owed: refunds of charges that this status does not count, and slots.

    A second time changes nothing. A response that streams holds its slots until it is closed. What is no response
    yet, because a framework is to make one of it, is a success unless it has another status.
    """
    state.has_finisher = False
    refunds: tuple[Correct, ...] = ()
    if state.counts_some or state.has_refused:
        refunds = state.take_refunds(status_of(response))
    state.end_charging()
    if not isinstance(response, HttpResponseBase):
        return partial(_end, request, state, refunds)
    if decisions := state.decisions:
        if state.refunds or state.is_refused:  # then they read as the answer has left them
            decisions = tuple([apply_refunds(one, state.refunds, released=state.is_refused) for one in decisions])
        if len(decisions) > 1 or not put_numbers(decisions[0], state.is_known, response.headers):
            put(header_fields(decisions, state.is_known), response.headers)
    if state.is_refused and response.status_code in (429, 503):
        # Django would log each, and mail each 503 to the admins; observe.reports limits its lines.
        response._has_been_logged = True  # type: ignore[attr-defined]
    state.callers = ()  # who refer to the request
    if (owes := bool(state.unsettled)) or conf().METER:
        measure_until_closed(request, response, state, owes=owes)
    if state.slots and response.streaming:
        hold_until_closed(request, response, state.take_slots())
    return partial(_refund_and_release, state, refunds) if state.slots or refunds else None


def put_numbers(decision: Decision, is_known: Callable[[], bool], headers: object) -> bool:
    """Add the header fields of a decision that has nothing to tell but numbers; return False for any other decision."""
    if (answered := decision.answered) is None or type(headers) is not ResponseHeaders:
        return False
    command, answers = answered
    prepared = command.charges.header_cache
    if prepared is None or prepared[0] is not conf():
        prepared = command.charges.header_cache = _prepared(command.charges)
    _, fields, of_others = prepared
    if fields is not of_others and not is_known():
        fields = of_others
    if fields is None:
        return False
    store = headers._store  # ASCII on one line, so Django need not look through each once more
    store["ratelimit-policy"] = "RateLimit-Policy", fields.policy
    store["ratelimit"] = "RateLimit", fields.left(answers.numbers)
    return True


def _prepared(charges: Charges) -> tuple[Any, ...]:
    """The settings in force, and the fields of plain decisions of these charges, see ``plain_fields``."""
    settings = conf()
    is_plain = settings.X_RATELIMIT_HEADERS == OFF and settings.RATELIMIT_HEADERS in NAMED_VERSIONS
    return settings, *(plain_fields(charges, settings.TELL_KEYS) if is_plain else (None, None))


def put(fields: Mapping[str, str], headers: Any) -> None:
    """Add fields of ours to those of a response."""
    if type(headers) is not ResponseHeaders:
        headers.update(fields)
        return
    store = headers._store
    store.update({name.lower(): (name, value) for name, value in fields.items()})


def measure_until_closed(request: HttpRequest, response: HttpResponseBase, state: RequestState, *, owes: bool) -> None:
    """Measure a request until its response is closed: with outer middleware and rendering, without sending it.

    The sending of a response that streams counts. Where the request ``owes``, it is settled once it is closed.
    """
    state.match, state.method = getattr(request, "resolver_match", None), request.method  # none in Ninja's tests
    if streams := response.streaming:
        _ = state.meter.cpu_ms  # as far as it can be read: it is not over before it is closed, by another thread maybe
    elif (call_once_rendered := getattr(response, "add_post_render_callback", None)) is not None:
        call_once_rendered(state.note_end)
    else:
        state.note_end()
    closing = _ResponseClosing(response)
    closing.state, closing.request = state, request if streams or owes else None
    response._resource_closers.append(closing)  # type: ignore[attr-defined]
    if "close" not in request.__dict__:  # a response that outer middleware replaces is not closed, its request is
        request.close = request_closing = _RequestClosing(request)  # type: ignore[method-assign]
        request_closing.closing = closing
    if streams:
        watch_stream(response, state.meter, closing)


class _ResponseClosing(ref[HttpResponseBase]):
    """Closes the meter once the response is closed: the client has all of it. Refers weakly to the response.

    It has the request only where the response streams or charges are owed: a request refers to what closes it, too.
    A copy of the response does nothing: Django's caches pickle a response with what closes it, and an answer from there
    is of another request.
    """

    __slots__ = ("request", "state")

    state: RequestState
    request: HttpRequest | None

    def __call__(self) -> None:
        response = super().__call__()
        close_meter(self.state, response)
        if self.state.unsettled:
            run_soon(partial(_settle, self.request, self.state, response))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (len, ())  # which does nothing


class _RequestClosing(ref[HttpRequest]):
    """The ``close`` of a request: its own, then that of its response."""

    __slots__ = ("closing",)

    closing: _ResponseClosing

    def __call__(self) -> None:
        try:
            if (request := super().__call__()) is not None:
                type(request).close(request)
        finally:
            self.closing()


async def _end(request: HttpRequest, state: RequestState, refunds: Sequence[Correct], io: Io) -> None:
    """All that is owed where there will be no response to be closed."""
    state.match, state.method = getattr(request, "resolver_match", None), request.method  # none in Ninja's tests
    close_meter(state)
    await _refund_and_release(state, refunds, io)
    await _settle(request, state, None, io)


def run_soon(owed: Owed) -> None:
    """Do what is owed; where an event loop runs, which must not be blocked, soon after."""
    if is_on_event_loop():
        spawn(owed(LoopIo(get_store())))
    else:
        run(owed(BlockingIo(get_store())))


async def arelease(request: HttpRequest) -> None:
    """Release the request's slots alone."""
    await release_slots(LoopIo(get_store()), state_of(request).take_slots())


async def _settle(request: HttpRequest | None, state: RequestState, response: object, io: Io) -> None:
    if state.unsettled:
        scope = state.call.scope if state.call else ""
        await settle(io, state.ledger, scope, state.meter, state.spending.end(state.ledger), (request, response))


async def _refund_and_release(state: RequestState, refunds: Sequence[Correct], io: Io) -> None:
    await release_slots(io, state.take_slots())
    if refunds and not await correct(io, refunds) and _log_throttle.due("refund"):
        logger.warning(
            "Redis does not answer: calls that count_on or refund_on excludes, or that another rule refused, could "
            "not be refunded, and stay charged until their windows end"
        )


def header_fields(decisions: Sequence[Decision], is_known: Callable[[], bool]) -> dict[str, str]:
    """RateLimit, RateLimit-Policy and X-RateLimit-*, as the settings ask for, from the decisions that were made.

    ``is_known`` says whether the client is logged in; only asked where it makes a difference, as it may take a query.

    A client is told of its own budgets only: by its address, its session, the key or the account that it has proved
    to hold. Under what it merely says, as the name in a login form, there may be somebody else.
    """
    settings = conf()
    version, x_version = settings.RATELIMIT_HEADERS, settings.X_RATELIMIT_HEADERS
    if x_version == version == OFF:
        return {}
    found = policies(visible(decisions, partial(may_see, settings.TELL_KEYS, is_known)))
    said = rate_limit(found, version)
    if x_version == OFF:
        return said
    return said | x_rate_limit(found, timezone.now().timestamp() if x_version == EPOCH else 0.0)
