"""The end of a request: header fields, refunds by status, release of leases."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from django_throttle.core import flow
from django_throttle.core.commands import answered
from django_throttle.http.inflight import hold_until_closed, soon
from django_throttle.http.refusal import fields
from django_throttle.http.request_state import Visit, kept, visit_of
from django_throttle.log_throttling import Complaints
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

_complaints: Final = Complaints()


def finish(request: HttpRequest, response: Response) -> Response:
    """Tell the client where it stands, give back charges that this answer does not deserve, and what was held.

    A second time changes nothing. A response that streams holds its slots until it is closed. What is no response
    yet, because a framework is to make one of it, is a success unless it says another status first.
    """
    visit = visit_of(request)
    status = _told(request, response, visit)
    if visit.owes:
        run(_settled(visit, status), get_store())
    visit.attended = False
    return response


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish without blocking the event loop."""
    visit = visit_of(request)
    status = _told(request, response, visit)
    if visit.owes:
        await arun(_settled(visit, status), get_store())
    visit.attended = False
    return response


def abandon(request: HttpRequest, error: BaseException) -> None:
    """The same when there is no response, but an error that somebody else may make one of.

    A client that has gone saw no answer, so nobody knows whether it was one that counts: it stays charged.
    """
    visit = visit_of(request)
    run(_settled(visit, status_of_error(error)), get_store())
    visit.attended = False


async def aabandon(request: HttpRequest, error: BaseException) -> None:
    """Abandon without blocking the event loop; a second cancellation does not end it.

    In the thread of this request, because a synchronous view goes on there when its client has gone: until it is
    through, it is in flight.
    """
    await asyncio.wait({abandon_soon(request, error)})


def finish_soon(request: HttpRequest, response: Response) -> Response:
    """Finish on an event loop where nobody can wait for it: what is owed is settled a little later."""
    visit = visit_of(request)
    soon(arun(_settled(visit, _told(request, response, visit)), get_store()))
    visit.attended = False
    return response


def abandon_soon(request: HttpRequest, error: BaseException) -> asyncio.Future[None]:
    """Abandon on an event loop where nobody can wait for it."""
    return soon(sync_to_async(abandon)(request, error))


async def alet_go(request: HttpRequest) -> None:
    """Give back what is held, whatever the answer will be; what was charged is settled with that."""
    await arun(_let_go(visit_of(request)), get_store())


def _told(request: HttpRequest, response: Any, visit: Visit) -> Any:
    """The status of the answer, once it says where the client stands, and holds what it needs until it is closed."""
    if not isinstance(response, HttpResponseBase):
        return status_of(response)
    status = response.status_code
    if decisions := kept(request):
        for name, value in fields(decisions, visit.is_known, status).items():
            response[name] = value
        if status in (429, 503) and not all(decision.allowed for decision in decisions):
            # Django would write a line for each, and mail each 503: ours do not make a flood, see observe.logs.
            response._has_been_logged = True  # type: ignore[attr-defined]
    if visit.slots and response.streaming:
        hold_until_closed(request, response, visit.slots)
        visit.slots = []
    return status


def _settled(visit: Visit, status: Any) -> flow.Flow[None]:
    receipts, visit.receipts = visit.receipts, []
    yield from _let_go(visit)
    for receipt in receipts if status is not None else ():
        done = yield from flow.refund(answered(receipt, status))
        if not done and _complaints.due("refund"):
            logger.warning("Redis is away: calls that do not count stay charged, for as long as their rules count")


def _let_go(visit: Visit) -> flow.Flow[None]:
    slots, visit.slots = visit.slots, []
    for slot in slots:
        yield from flow.release(slot.take())
