"""The end of a request: its header fields, refunds by its status, and the release of its slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from django_throttle.conf import conf
from django_throttle.core import Decision, flow
from django_throttle.core.commands import answered
from django_throttle.core.headers import EPOCH, OFF, Policy, policies, rate_limit, told, x_rate_limit
from django_throttle.core.refunds import settled
from django_throttle.http.inflight import hold_until_closed, soon
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
    """Add the header fields, refund charges that this answer's status does not count, and release slots.

    A second time changes nothing. A response that streams holds its slots until it is closed. What is no response
    yet, because a framework is to make one of it, is a success unless it has another status.
    """
    if owed := _owed(request, response):
        run(owed, get_store())
    return response


async def afinish(request: HttpRequest, response: Response) -> Response:
    """Finish without blocking the event loop."""
    if owed := _owed(request, response):
        await arun(owed, get_store())
    return response


def finish_here(request: HttpRequest, response: Response) -> Response:
    """Finish; where an event loop runs, which nobody may block or await here, refund and release a little later."""
    if owed := _owed(request, response):
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
    (_abandon_soon if visit_of(request).owes and _is_on_loop() else abandon)(request, status)


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


def _owed(request: HttpRequest, response: Any) -> flow.Flow[None] | None:
    """Add the header fields; returns what is then to be asked of the store, None where nothing is."""
    visit = visit_of(request)
    visit.attended = False
    if isinstance(response, HttpResponseBase):
        _complete(request, response, visit)
    return _settled(visit, status_of(response)) if visit.owes else None


def _complete(request: HttpRequest, response: Any, visit: Visit) -> None:
    status = response.status_code
    if decisions := kept(request):
        for name, value in fields(decisions, visit.is_known, status).items():
            response[name] = value
        if status in (429, 503) and not all(decision.allowed for decision in decisions):
            # Django would log each, and mail each 503 to the admins; observe.logs limits its lines.
            response._has_been_logged = True
    if visit.slots and response.streaming:
        hold_until_closed(request, response, visit.slots)
        visit.slots = []


def _settled(visit: Visit, status: Any) -> flow.Flow[None]:
    receipts, visit.receipts = visit.receipts, []
    yield from _release_slots(visit)
    for receipt in receipts if status is not None else ():
        done = yield from flow.refund(answered(receipt, status))
        if not done and _complaints.due("refund"):
            logger.warning(
                "Redis does not answer: calls that count_on excludes could not be refunded, and stay charged until "
                "their windows end"
            )


def _release_slots(visit: Visit) -> flow.Flow[None]:
    slots, visit.slots = visit.slots, []
    for slot in slots:
        yield from flow.release(slot.take())


# Kinds of idents that whoever sends the request has shown to be its own, or that belong to nobody.
PUBLIC: Final = frozenset(("ip", "session", "api_key", "user_or_ip", "everyone"))
# Those that only somebody who is logged in can have.
PERSONAL: Final = frozenset(("user", "tenant"))


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
    final = [settled(decision, status) if decision.receipt else decision for decision in decisions]
    found = policies(told(final, lambda ident: _is_own(ident, is_known)))
    said = rate_limit(found, settings.RATELIMIT_HEADERS)
    return said if settings.X_RATELIMIT_HEADERS == OFF else said | _by_custom(found, settings.X_RATELIMIT_HEADERS)


def _is_own(ident: str, is_known: Callable[[], bool]) -> bool:
    key = ident.partition(":")[0]
    if key in PUBLIC:
        return True
    if key in PERSONAL and key not in conf().TELL_KEYS:
        return is_known()
    kinds = set(key.split("+")).difference(PUBLIC, conf().TELL_KEYS)
    return not kinds or (kinds <= PERSONAL and is_known())


def _by_custom(found: Sequence[Policy], version: str) -> dict[str, str]:
    return x_rate_limit(found, timezone.now().timestamp() if version == EPOCH else 0.0)
