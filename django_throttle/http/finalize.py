"""End of a request: its header fields, refunds by its status, and the release of its slots."""

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

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import Charges, Correct
from django_throttle.core.decide import apply_refunds, correct
from django_throttle.core.headers import (
    EPOCH,
    NEWEST,
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
from django_throttle.http import request_costs
from django_throttle.http.request_state import RequestState, state_of
from django_throttle.http.slots import hold_until_closed, release_slots
from django_throttle.local.shared_clock import shared_clock
from django_throttle.observe import recorders
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
    """Return the status of a response. For other content, return the first item of a tuple, else 200."""
    status = getattr(answer, "status_code", None)
    if status is not None:
        return status
    return answer[0] if isinstance(answer, tuple) and answer else HTTPStatus.OK


def status_of_error(error: BaseException) -> int | None:
    """Return the status with which Django, or the framework that raised it, answers an error.

    Return None if there is no answer because the client disconnected.
    """
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), None)


logger = logging.getLogger("django_throttle")

Response = TypeVar("Response")
#: Refunds, releases and settles.
FinishWork = Callable[[Io], Coroutine[Any, Any, None]]

_log_throttle: Final = LogThrottle()


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish a request on an event loop, with its refunds and releases."""
    if finish_work := finish(request, response, state_of(request)):
        await finish_work(LoopIo(get_store()))
    return response


def finish_failed(request: HttpRequest, status: int | None) -> None:
    """Refund and release after an error, which is turned into a response elsewhere.

    ``status`` is that of the error. None is for a client that disconnected without an answer: its call stays charged.
    """
    state = state_of(request)
    state.has_finisher = False
    refunds = state.take_refunds(CANCELLED if status is None else status)
    run(_end(request, state, refunds, BlockingIo(get_store())))


async def afinish_failed(request: HttpRequest, status: int | None) -> None:
    """Refund and release without blocking the event loop. A second cancellation does not interrupt this.

    The work runs in the thread of the request. A synchronous view continues there after its client disconnects, and
    keeps its slots until it returns.
    """
    await asyncio.wait({spawn(sync_to_async(finish_failed)(request, status))})


def finish(request: HttpRequest, response: object, state: RequestState) -> FinishWork | None:
    """Add the header fields. Return a coroutine function that refunds by the status and releases slots, or None.

    A second call changes nothing. A streaming response keeps its slots until it is closed. Content from which a
    framework is yet to make a response counts as a success unless it has another status.
    """
    state.has_finisher = False
    refunds: tuple[Correct, ...] = ()
    if state.counts_some or state.has_refused:
        refunds = state.take_refunds(status_of(response))
    state.has_ended, state.drop_in_ledger = True, None
    owes = not state.is_plain and state.end_charging()
    if not isinstance(response, HttpResponseBase):
        return partial(_end, request, state, refunds)
    if decisions := state.decisions:
        if state.refunds or state.is_refused:
            decisions = tuple(
                [apply_refunds(decision, state.refunds, released=state.is_refused) for decision in decisions]
            )
        if len(decisions) > 1 or not _set_plain_fields(decisions[0], state.is_logged_in, response.headers):
            set_fields(header_fields(decisions, state.is_logged_in), response.headers)
    if state.is_refused and response.status_code in (429, 503):
        # Django would log every refusal, and mail every 503 to the admins. observe.reports limits its lines.
        response._has_been_logged = True  # type: ignore[attr-defined]
    state.callers = ()  # callers refer to the request
    if owes or recorders.current is not None or conf().LOG_COST_ABOVE:
        measure_until_closed(request, response, state, owes=owes)
    if state.slots and response.streaming:
        hold_until_closed(request, response, state.take_slots())
    return partial(_refund_and_release, state, refunds) if state.slots or refunds else None


def _set_plain_fields(decision: Decision, is_logged_in: Callable[[], bool], headers: ResponseHeaders) -> bool:
    """Add the header fields of a plain decision. Return False, and add nothing, if the decision is not plain."""
    if (answered := decision.answered) is None:
        return False
    command, answers = answered
    header_cache = command.charges.header_cache
    if header_cache is None or header_cache[0] is not conf():
        header_cache = command.charges.header_cache = _prepare_fields(command.charges)
    _, fields, anonymous_fields = header_cache
    if fields is not anonymous_fields and not is_logged_in():
        fields = anonymous_fields
    if fields is None:
        return False
    store = headers._store  # ASCII on one line: Django's own checks are not needed
    store["ratelimit-policy"] = "RateLimit-Policy", fields.policy
    store["ratelimit"] = "RateLimit", fields.rate_limit(answers.numbers)
    return True


def _prepare_fields(charges: Charges) -> tuple[object, ...]:
    """Return the current settings, and the fields of plain decisions of these charges, see ``plain_fields``."""
    settings = conf()
    is_plain = settings.X_RATELIMIT_HEADERS == OFF and settings.RATELIMIT_HEADERS == NEWEST
    return settings, *(plain_fields(charges, settings.TELL_KEYS) if is_plain else (None, None))


def set_fields(fields: Mapping[str, str], headers: ResponseHeaders) -> None:
    """Add fields to the headers of a response."""
    headers._store.update({name.lower(): (name, value) for name, value in fields.items()})


def measure_until_closed(request: HttpRequest, response: HttpResponseBase, state: RequestState, *, owes: bool) -> None:
    """Measure a request until its response is closed. Outer middleware and rendering count; sending does not.

    The sending of a streaming response counts. If the request ``owes`` units, they are settled at the close.
    """
    state.match, state.method = getattr(request, "resolver_match", None), request.method  # Ninja's tests have no match
    if streams := response.streaming:
        _ = state.meter.cpu_ms  # read now, because another thread may close the response
    elif (call_once_rendered := getattr(response, "add_post_render_callback", None)) is not None:
        call_once_rendered(state.note_end)
    else:
        state.note_end()
    closing = _ResponseClosing(response)
    closing.state, closing.request = state, request if streams or owes else None
    response._resource_closers.append(closing)  # type: ignore[attr-defined]
    if "close" not in request.__dict__:  # if outer middleware replaces the response, only the request is closed
        request.close = request_closing = _RequestClosing(request)  # type: ignore[method-assign]
        request_closing.closing = closing
    if streams:
        request_costs.watch_stream(response, state.meter, closing)


class _ResponseClosing(ref[HttpResponseBase]):
    """Weak reference to a response, called at its close. It stops the meter, and settles what the request owes.

    It refers to the request only if the response streams or charges are owed, because a request refers to its closers.
    In a pickled copy it does nothing: Django's caches pickle responses, and use them for other requests.
    """

    __slots__ = ("request", "state")

    state: RequestState
    request: HttpRequest | None

    def __call__(self) -> None:
        response = super().__call__()
        request_costs.close_meter(self.state, response)
        if self.state.unsettled:
            run_soon(partial(_settle, self.request, self.state, response))

    def __reduce__(self) -> tuple[object, ...]:
        return partial, (len, ())  # a function without effect


class _RequestClosing(ref[HttpRequest]):
    """Replacement of a request's ``close``: it closes the request, and then ends the measurement of its response."""

    __slots__ = ("closing",)

    closing: _ResponseClosing

    def __call__(self) -> None:
        try:
            if (request := super().__call__()) is not None:
                type(request).close(request)
        finally:
            self.closing()


async def _end(request: HttpRequest, state: RequestState, refunds: Sequence[Correct], io: Io) -> None:
    """Refund, release and settle at once, because there is no response that could be closed."""
    state.match, state.method = getattr(request, "resolver_match", None), request.method  # Ninja's tests have no match
    request_costs.close_meter(state)
    await _refund_and_release(state, refunds, io)
    await _settle(request, state, None, io)


def run_soon(finish_work: FinishWork) -> None:
    """Run the work at once, or in a task if an event loop runs, which must not be blocked."""
    if is_on_event_loop():
        spawn(finish_work(LoopIo(get_store())))
    else:
        run(finish_work(BlockingIo(get_store())))


async def arelease(request: HttpRequest) -> None:
    """Release the slots of a request. Refund nothing."""
    await release_slots(LoopIo(get_store()), state_of(request).take_slots())


async def _settle(request: HttpRequest | None, state: RequestState, response: object, io: Io) -> None:
    if state.unsettled:
        scope = state.call.scope if state.call else ""
        await settle(io, state.ledger, scope, state.meter, state.spending.end(state.ledger), (request, response))


async def _refund_and_release(state: RequestState, refunds: Sequence[Correct], io: Io) -> None:
    await release_slots(io, state.take_slots())
    if refunds and not await correct(io, refunds) and _log_throttle.try_acquire("refund"):
        logger.warning(
            "Redis does not answer: calls that count_on or refund_on excludes, or that another rule refused, could "
            "not be refunded, and stay charged until their windows end"
        )


def header_fields(decisions: Sequence[Decision], is_logged_in: Callable[[], bool]) -> dict[str, str]:
    """Return the RateLimit, RateLimit-Policy and X-RateLimit-* fields of decisions, depending on the settings.

    ``is_logged_in`` returns True if the client is logged in. It may take a query, so it is called only if it matters.

    Fields show a client its own budgets only: those of its address, its session, or a key or account that it has
    proved to hold. An unproved ident, such as the name in a login form, may be somebody else's.
    """
    settings = conf()
    version, x_version = settings.RATELIMIT_HEADERS, settings.X_RATELIMIT_HEADERS
    if x_version == version == OFF:
        return {}
    shown = policies(visible(decisions, partial(may_see, settings.TELL_KEYS, is_logged_in)))
    fields = rate_limit(shown, version)
    if x_version == OFF:
        return fields
    return fields | x_rate_limit(shown, shared_clock.now() if x_version == EPOCH else 0.0)
