"""The end of a request: its header fields, refunds by its status, and the release of its slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.core.commands import refund_for_status
from django_throttle.core.decide import Flow, after_status, refund_charges, release_lease
from django_throttle.core.headers import EPOCH, OFF, Policy, may_see, policies, rate_limit, visible, x_rate_limit
from django_throttle.http.request_state import Visit, hold_until_closed, soon, visit_of
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
    if owed := _owed(request, response, visit_of(request)):
        run(owed, get_store())
    return response


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish without blocking the event loop."""
    if owed := _owed(request, response, visit_of(request)):
        await arun(owed, get_store())
    return response


def finish_here(request: HttpRequest, response: Response) -> Response:
    """Finish a view's response; where an event loop runs, which must not be blocked, refund and release soon after.

    Whoever calls a view with this request again makes another call.
    """
    visit = visit_of(request)
    visit.costs.clear()
    if owed := _owed(request, response, visit):
        if _is_on_loop():
            soon(arun(owed, get_store()))
        else:
            run(owed, get_store())
    return response


def abandon(request: HttpRequest, status: int | None) -> None:
    """Refund and release where there is no response, but an error from which somebody else may make one.

    ``status`` is that of the error. It is None when the client has gone: it saw no answer, so the call stays charged.
    """
    visit = visit_of(request)
    run(_settled(visit, status), get_store())
    visit.attended = False


async def aabandon(request: HttpRequest, status: int | None) -> None:
    """Abandon without blocking the event loop; a second cancellation does not end it.

    In the thread of this request, because a synchronous view goes on there when its client has gone: until it
    returns, it is in flight.
    """
    await asyncio.wait({_abandon_soon(request, status)})


def abandon_here(request: HttpRequest, status: int | None) -> None:
    """Abandon; where an event loop runs, a little later."""
    visit = visit_of(request)
    (_abandon_soon if (visit.slots or visit.receipts) and _is_on_loop() else abandon)(request, status)


def _abandon_soon(request: HttpRequest, status: int | None) -> asyncio.Future[None]:
    return soon(sync_to_async(abandon)(request, status))


async def arelease_slots(request: HttpRequest) -> None:
    """Release what is held, whatever the answer will be; its status decides what is refunded, later."""
    await arun(_release_slots(visit_of(request)), get_store())


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _owed(request: HttpRequest, response: Any, visit: Visit) -> Flow[None] | None:
    """Add the header fields; returns what is then to be asked of the store, None where nothing is."""
    visit.attended = False
    if not isinstance(response, HttpResponseBase):
        return _settled(visit, status_of(response)) if visit.slots or visit.receipts else None
    decisions: Sequence[Decision] = getattr(request, "throttle_decisions", ())
    if decisions:
        for name, value in fields(decisions, visit.is_known, response.status_code).items():
            response[name] = value
    if response.status_code in (429, 503) and not all(decision.allowed for decision in decisions):
        # Django would log each, and mail each 503 to the admins; observe.reports limits its lines.
        response._has_been_logged = True  # type: ignore[attr-defined]
    if visit.slots and response.streaming:
        hold_until_closed(request, response, visit.slots)
        visit.slots = []
    return _settled(visit, response.status_code) if visit.slots or visit.receipts else None


def _settled(visit: Visit, status: Any) -> Flow[None]:
    receipts, visit.receipts = visit.receipts, []
    yield from _release_slots(visit)
    for receipt in receipts if status is not None else ():
        done = yield from refund_charges(refund_for_status(receipt, status))
        if not done and _log_throttle.due("refund"):
            logger.warning(
                "Redis does not answer: calls that count_on excludes could not be refunded, and stay charged until "
                "their windows end"
            )


def _release_slots(visit: Visit) -> Flow[None]:
    slots, visit.slots = visit.slots, []
    for slot in slots:
        yield from release_lease(slot.take())


def fields(decisions: Sequence[Decision], is_known: Callable[[], bool], status: int = HTTPStatus.OK) -> dict[str, str]:
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
    return said if settings.X_RATELIMIT_HEADERS == OFF else said | _by_custom(found, settings.X_RATELIMIT_HEADERS)


def _by_custom(found: Sequence[Policy], version: str) -> dict[str, str]:
    return x_rate_limit(found, timezone.now().timestamp() if version == EPOCH else 0.0)
