"""One HTTP request: its scope and size, and what doors have decided about it and owe it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from os import SEEK_END
from typing import Any, Final

from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, resolve

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
    return view_scope(match.func) or route_of(match)


def route_of(match: ResolverMatch) -> str:
    """The name of the route, else the route itself."""
    return match.view_name if match.url_name else match.route


def view_scope(view: Any) -> str | None:
    """The ``throttle_scope`` of a view: as_view()'s, its class's (Django's or REST framework's), or the function's."""
    given = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None) or {}
    whose = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    scope = given.get("throttle_scope") or getattr(whose, "throttle_scope", None)
    return scope if isinstance(scope, str) and scope else None


# The events of a request: it is counted, and it is in flight until it has been answered.
REQUEST_EVENTS: Final = ("request", "inflight")
_STATE: Final = "_throttle_state"


@dataclass(slots=True)
class RequestState:
    """What doors know and owe of a request: ``has_finisher`` once a door will finish it.

    ``callers`` are the caller as each door knows it. ``byte_facts`` are the rules that count bytes, and the call that
    each was last asked about. ``scope`` is where the middleware took the request to go.
    """

    has_finisher: bool = False
    callers: list[Who] = field(default_factory=list)
    costs: dict[tuple[str, str], int] = field(default_factory=dict)
    receipts: list[Refund] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    byte_facts: dict[str, Facts] = field(default_factory=dict)
    scope: str = ""

    def become_finisher(self, who: Who) -> bool:
        """True for the first door that a request comes to: it finishes or abandons the request, and no other does."""
        if self.has_finisher:
            return False
        self.has_finisher, self.callers = True, [who]
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


def django_request(request: Any) -> Any:
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
        return _readable(request, stream)
    at = stream.tell()
    size: int = stream.seek(0, SEEK_END)
    stream.seek(at)
    return size


def _readable(request: HttpRequest, stream: Any) -> int:
    try:
        limit = int(getattr(stream, "limit", None) or request.META.get("CONTENT_LENGTH") or 0)
    except (TypeError, ValueError):  # Django reads nothing then
        return 0
    return max(0, limit)


def record_for_headers(request: HttpRequest, decision: Decision, who: Who | None = None) -> None:
    """Note a decision on the request for header fields alone, where no other door applies its rules."""
    request.throttle_decisions = (*getattr(request, "throttle_decisions", ()), decision)  # type: ignore[attr-defined]
    if who is not None:
        state_of(request).callers.append(who)


def record(
    request: HttpRequest, decision: Decision, facts: Facts | None = None, who: Who | None = None
) -> RequestState:
    """Note a decision on the request, also for the doors that come after; returns the request's state.

    ``facts`` are those that were decided; ``who`` is the caller, where this door knows more of it.
    """
    state = state_of(request)
    record_for_headers(request, decision)
    if who is not None:
        state.callers.append(who)
    if state.costs:
        state.forget(charged_for(request).mistaken(decision.outcomes))
    if decision.allowed:
        cost = facts.cost if facts else 1
        for outcome in decision.outcomes:
            pair = outcome.rule, outcome.ident
            state.costs[pair] = max(cost, state.costs.get(pair, 0))
            if facts and outcome.unit == "bytes":
                state.byte_facts[outcome.rule] = facts
    if decision.receipt is not None:
        state.receipts.append(decision.receipt)
    if decision.lease is not None:
        state.slots.append(Slot(decision.lease, get_store().leases))
    return state


def decisions_of(request: HttpRequest) -> tuple[Decision, ...]:
    """The decisions made of this request so far."""
    found: tuple[Decision, ...] = getattr(request, "throttle_decisions", ())
    return found


def charged_for(request: HttpRequest) -> EarlierCharges:
    """What was charged for this request: a door of higher cost adds the rest, one that knows the caller corrects it."""
    state = state_of(request)
    if not state.costs:
        return NO_CHARGES
    leases = tuple(slot.lease for slot in state.slots if slot.lease is not None)
    return EarlierCharges(dict(state.costs), tuple(state.receipts), leases)


def facts_of(
    request: HttpRequest, scope: str, who: Who, cost: int = 1, events: tuple[str, ...] = REQUEST_EVENTS, **more: Any
) -> Facts:
    """The facts of a request, with what other doors have charged for it; ``more`` are further ones."""
    done, method = charged_for(request), method_of(request)
    return Facts(scope, events, who, cost, done, method=method, size=size_of(request), **more)


def state_of(request: HttpRequest) -> RequestState:
    """The state of the request; an empty one the first time."""
    state: RequestState | None = getattr(request, _STATE, None)
    if state is None:
        state = RequestState()
        setattr(request, _STATE, state)
    return state
