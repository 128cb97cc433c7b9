"""One HTTP request: its route, its size, what doors decided about it, what remains to be done, and requests in flight.

Their leases are held until the response is sent or its stream is closed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import SEEK_END
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import Resolver404, ResolverMatch, resolve

from django_throttle import limiter
from django_throttle.call_facts import Facts, Who
from django_throttle.connections.leases import Leases
from django_throttle.core import Decision
from django_throttle.core.commands import Refund, refund_for_idents
from django_throttle.core.decide import NO_CHARGES, EarlierCharges
from django_throttle.core.decision import Lease
from django_throttle.stores import get_store


class Slot:
    """A lease that is released once; at the latest when it is collected, as of a response that was never closed."""

    __slots__ = ("_leases", "lease")

    def __init__(self, lease: Lease, leases: Leases) -> None:
        self.lease: Lease | None = lease
        self._leases = leases

    def take(self) -> Lease | None:
        """The lease; None from the second time on."""
        lease, self.lease = self.lease, None
        return lease

    def drop(self) -> None:
        """Have the lease released a little later, without waiting for a store."""
        lease = self.take()
        if lease is not None:
            self._leases.abandon(lease)

    __del__ = drop


def hold_until_closed(request: Any, response: Any, slots: Sequence[Slot]) -> None:
    """Release the slots when all has been sent or sending failed, at the latest when the response is closed.

    When a server sends a file by itself, only closing the response tells that it is sent. Django may answer 304 in
    place of a file, and then closes the request but not the file's response. When sending fails, nothing may be
    closed, so only the response refers to the slots, in no reference cycle: they are released when it is collected.
    Under ASGI, exceptions refer to each other and to the response, so the slots are released when the request ends.
    """
    leases = [slot.lease for slot in slots]
    response._resource_closers.append(partial(_give_back, slots))
    request.close = partial(_close, weakref.ref(request), request.__dict__.get("close"), leases)
    to_the_end = _ato_the_end if response.is_async else _to_the_end
    parts = to_the_end(response._iterator, slots)
    # By the base class: a FileResponse would no longer be a file that a server can send by itself.
    StreamingHttpResponse._set_streaming_content(response, parts)  # type: ignore[attr-defined]
    _drop_when_over(slots)


def soon(ending: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
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
        _give_back(slots)
        raise
    _give_back(slots)


async def _ato_the_end(content: AsyncIterator[bytes], slots: Sequence[Slot]) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    except BaseException:  # also where the event loop ends it; a second cancellation does not end this
        await asyncio.wait({soon(_agive_back(slots))})
        raise
    await _agive_back(slots)


def _drop_when_over(slots: Sequence[Slot]) -> None:
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


class _Dropped(list[Slot]):
    """The slots that a thread holds until it ends."""

    def __del__(self) -> None:
        for slot in self:
            slot.drop()


_of_thread: Final = threading.local()


def _drop_with_thread(slots: Sequence[Slot]) -> None:
    held: _Dropped = _of_thread.__dict__.setdefault("slots", _Dropped())
    held[:] = [*(slot for slot in held if slot.lease), *slots]


def _close(request: weakref.ref[Any], close: Callable[[], None] | None, leases: Sequence[Lease | None]) -> None:
    """``close`` is what was in this one's place; without it the request's own."""
    try:
        if close is not None:
            close()
        elif (found := request()) is not None:
            type(found).close(found)
    finally:
        for lease in leases:  # a second time changes nothing
            limiter.release(lease)


def _give_back(slots: Sequence[Slot]) -> None:
    for slot in slots:
        limiter.release(slot.take())


async def _agive_back(slots: Sequence[Slot]) -> None:
    for slot in slots:
        await limiter.arelease(slot.take())


# The scope of what leads nowhere.
NO_ROUTE: Final = "404"


def scope_of(request: HttpRequest) -> str:
    """The ``throttle_scope`` of the view that the path resolves to, else the route's; never the raw path."""
    try:
        match = resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return NO_ROUTE
    return scope_of_match(match)


def scope_of_match(match: ResolverMatch) -> str:
    """The scope of what a path has been resolved to."""
    return view_scope(match.func) or route(match)


def route(match: ResolverMatch) -> str:
    """The name of the route, else the route itself."""
    return match.view_name if match.url_name else match.route


def view_scope(view: Any) -> str | None:
    """The ``throttle_scope`` of a view: as_view()'s, its class's (Django's or REST framework's), or the function's."""
    given = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None) or {}
    whose = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    scope = given.get("throttle_scope") or getattr(whose, "throttle_scope", None)
    return scope if isinstance(scope, str) and scope else None


# The events of a request: it is counted, and it is in flight until it has been answered.
EVENTS: Final = ("request", "inflight")
_VISIT: Final = "_throttle_visit"


@dataclass(slots=True)
class Visit:
    """What doors know and owe of a request: ``attended`` once a door will finish it, ``callers`` as each door knows it.

    ``volumes`` are the rules that count bytes, and the call that each was last asked about. ``scope`` is where the
    middleware took the request to go.
    """

    attended: bool = False
    callers: list[Who] = field(default_factory=list)
    costs: dict[tuple[str, str], int] = field(default_factory=dict)
    receipts: list[Refund] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    volumes: dict[str, Facts] = field(default_factory=dict)
    scope: str = ""

    def attend(self, who: Who) -> bool:
        """True for the first door that a request comes to: it finishes or abandons the request, and no other does."""
        if self.attended:
            return False
        self.attended, self.callers = True, [who]
        return True

    def is_known(self) -> bool:
        """Whether the caller is logged in, as far as any door knows."""
        return any(who.is_("authenticated") for who in reversed(self.callers))

    def forget(self, pairs: Collection[tuple[str, str]]) -> None:
        """Drop charges that have been refunded."""
        for pair in pairs:
            del self.costs[pair]
        if pairs:
            rest = [refund_for_idents(receipt, pairs, others=True) for receipt in self.receipts]
            self.receipts = [receipt for receipt in rest if receipt is not None]


def plain(request: Any) -> Any:
    """Django's request; REST framework's views get one that wraps it."""
    return getattr(request, "_request", request)


def method_of(request: HttpRequest) -> str:
    """GET, POST, …, in capitals; headers that name another method are ignored."""
    return (request.method or "").upper()


def size_of(request: HttpRequest) -> int:
    """How many bytes the view can read by Django's request.

    Under ASGI Django has read the whole body before there is a request: that is measured. Under WSGI it lets as many be
    read as Content-Length says, which is none where there is no such header, or no number in it.
    """
    stream: Any = getattr(request, "_stream", None)
    if getattr(stream, "closed", False) or not hasattr(stream, "seekable") or not stream.seekable():
        return _let_through(request, stream)
    at = stream.tell()
    size: int = stream.seek(0, SEEK_END)
    stream.seek(at)
    return size


def _let_through(request: HttpRequest, stream: Any) -> int:
    try:
        limit = int(getattr(stream, "limit", None) or request.META.get("CONTENT_LENGTH") or 0)
    except (TypeError, ValueError):  # Django reads nothing then
        return 0
    return max(0, limit)


def note(request: HttpRequest, decision: Decision, who: Who | None = None) -> None:
    """Note a decision on the request for header fields alone, where no other door applies its rules."""
    request.throttle_decisions = (*getattr(request, "throttle_decisions", ()), decision)  # type: ignore[attr-defined]
    if who is not None:
        visit_of(request).callers.append(who)


def keep(request: HttpRequest, decision: Decision, facts: Facts | None = None, who: Who | None = None) -> Visit:
    """Note a decision on the request, also for the doors that come after; returns the request's state.

    ``facts`` are those that were decided; ``who`` is the caller, where this door knows more of it.
    """
    visit = visit_of(request)
    note(request, decision)
    if who is not None:
        visit.callers.append(who)
    if visit.costs:
        visit.forget(charged(request).mistaken(decision.outcomes))
    if decision.allowed:
        cost = facts.cost if facts else 1
        for outcome in decision.outcomes:
            pair = outcome.rule, outcome.ident
            visit.costs[pair] = max(cost, visit.costs.get(pair, 0))
            if facts and outcome.unit == "bytes":
                visit.volumes[outcome.rule] = facts
    if decision.receipt is not None:
        visit.receipts.append(decision.receipt)
    if decision.lease is not None:
        visit.slots.append(Slot(decision.lease, get_store().leases))
    return visit


def kept(request: HttpRequest) -> tuple[Decision, ...]:
    """The decisions made of this request so far."""
    found: tuple[Decision, ...] = getattr(request, "throttle_decisions", ())
    return found


def charged(request: HttpRequest) -> EarlierCharges:
    """What was charged for this request: a door of higher cost adds the rest, one that knows the caller corrects it."""
    visit = visit_of(request)
    if not visit.costs:
        return NO_CHARGES
    leases = tuple(slot.lease for slot in visit.slots if slot.lease is not None)
    return EarlierCharges(dict(visit.costs), tuple(visit.receipts), leases)


def visit_of(request: HttpRequest) -> Visit:
    """The state of the request; an empty one the first time."""
    visit: Visit | None = getattr(request, _VISIT, None)
    if visit is None:
        visit = Visit()
        setattr(request, _VISIT, visit)
    return visit
