"""The state of one HTTP request: its route, what doors decided about it, and what remains to be done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, resolve

from django_throttle.core import Decision
from django_throttle.core.commands import Refund, paid_under
from django_throttle.core.refunds import NOTHING, Charged
from django_throttle.facts import Facts, Who
from django_throttle.http.inflight import Slot
from django_throttle.stores import get_store

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
_KEPT: Final = "throttle_decisions"
_VISIT: Final = "_throttle_visit"


@dataclass(slots=True)
class Visit:
    """What is owed for a request: ``attended`` by the door that settles it, ``callers`` as each door knows it.

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

    @property
    def owes(self) -> bool:
        """Whether the store has to be asked when the request is settled."""
        return bool(self.slots or self.receipts)

    def is_known(self) -> bool:
        """Whether the caller is logged in, as far as any door knows."""
        return any(who.is_("authenticated") for who in reversed(self.callers))

    def forget(self, pairs: Collection[tuple[str, str]]) -> None:
        """These have gone back already."""
        for pair in pairs:
            del self.costs[pair]
        if pairs:
            rest = [paid_under(receipt, pairs, others=True) for receipt in self.receipts]
            self.receipts = [receipt for receipt in rest if receipt is not None]


def plain(request: Any) -> Any:
    """Django's request, of which REST framework's views get one of their own."""
    return getattr(request, "_request", request)


def method_of(request: HttpRequest) -> str:
    """GET, POST, …: what the request says it is, whatever headers say that it means."""
    return (request.method or "").upper()


def note(request: HttpRequest, decision: Decision, who: Who | None = None) -> None:
    """Have a decision of rules that no other door asks about stay on the request, for headers and logs."""
    setattr(request, _KEPT, (*kept(request), decision))
    if who is not None:
        visit_of(request).callers.append(who)


def keep(request: HttpRequest, decision: Decision, cost: int = 1, who: Who | None = None) -> None:
    """Note a decision on the request, also for the doors that come after.

    ``cost`` is what the call was said to cost; ``who`` is the caller, where this door knows more of it.
    """
    note(request, decision, who)
    visit = visit_of(request)
    if visit.costs:
        visit.forget(charged(request).mistaken(decision.outcomes))
    for rule, ident, *_ in decision.outcomes if decision.allowed else ():
        visit.costs[rule, ident] = max(cost, visit.costs.get((rule, ident), 0))
    if decision.receipt is not None:
        visit.receipts.append(decision.receipt)
    if decision.lease is not None:
        visit.slots.append(Slot(decision.lease, get_store().leases))


def kept(request: HttpRequest) -> tuple[Decision, ...]:
    """The decisions made of this request so far."""
    found: tuple[Decision, ...] = getattr(request, _KEPT, ())
    return found


def charged(request: HttpRequest) -> Charged:
    """What was charged for this request already: a dearer door adds the rest, one that knows the caller corrects it."""
    visit = visit_of(request)
    if not visit.costs:
        return NOTHING
    leases = tuple(slot.lease for slot in visit.slots if slot.lease is not None)
    return Charged(dict(visit.costs), tuple(visit.receipts), leases)


def attend(request: HttpRequest, who: Who) -> bool:
    """True for the first door that a request comes to: it calls ``finish`` or ``abandon``, and no other does."""
    visit = visit_of(request)
    if visit.attended:
        return False
    visit.attended, visit.callers = True, [who]
    return True


def visit_of(request: HttpRequest) -> Visit:
    """What is owed for the request."""
    visit: Visit | None = getattr(request, _VISIT, None)
    if visit is None:
        visit = Visit()
        setattr(request, _VISIT, visit)
    return visit
