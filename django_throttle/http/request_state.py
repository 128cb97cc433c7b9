"""One HTTP request: its scope and size, and what entry points have decided about it and owe it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from os import SEEK_END
from threading import get_ident
from time import perf_counter, thread_time
from types import FunctionType, MappingProxyType
from typing import Any, Final, NamedTuple

from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core.handlers.wsgi import LimitedStream
from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, URLResolver, get_resolver
from django.utils.functional import Promise, cached_property
from django.utils.translation import get_language

from django_throttle.conf import conf
from django_throttle.core import Decision, Lease
from django_throttle.core.commands import Answers, Correct, Decide, Entry
from django_throttle.core.ledger import Ledger
from django_throttle.core.options import CANCELLED
from django_throttle.costs.meter import Meter, in_use
from django_throttle.http.slots import Slot
from django_throttle.http.spending import Spending
from django_throttle.identity.call import Call, Caller, own_function
from django_throttle.later.queue_slots import QueueSlot, queue_slot_under
from django_throttle.stores import get_store

# The scope of what leads nowhere.
NO_ROUTE: Final = "404"


class RoutedRequest(NamedTuple):
    """Where a request is taken to go: the scope, and what the path resolves to; None where it leads nowhere."""

    scope: str
    match: ResolverMatch | None = None

    def is_of(self, match: ResolverMatch) -> bool:
        """Whether a request that Django has taken there is in the same scope."""
        mine = self.match
        if mine is None or mine.func is not match.func or mine.route != match.route:
            return scope_of_match(match) == self.scope
        return mine.view_name == match.view_name or scope_of_match(match) == self.scope


def place_of(request: HttpRequest) -> RoutedRequest:
    """The ``throttle_scope`` of the view that the path resolves to, else the route's; never the raw path.

    Those of short paths are remembered: where a route depends on more than its path, ``process_view`` sees another.
    """
    path, resolver = request.path_info, get_resolver(getattr(request, "urlconf", None))  # as Django's handler does
    urlconf: Any = resolver.urlconf_name
    language = get_language() if is_language_prefix_patterns_used(urlconf)[0] else None
    find = _place_of_path if len(path) <= LONGEST_PATH else _place_of_path.__wrapped__
    return find(resolver, path, language)


LONGEST_PATH: Final = 200  # of those whose scope is remembered


@lru_cache(maxsize=4096)
def _place_of_path(resolver: URLResolver, path: str, language: str | None) -> RoutedRequest:
    try:
        match = resolver.resolve(path)
    except Resolver404:
        return RoutedRequest(NO_ROUTE)
    return RoutedRequest(scope_of_match(match), match)


def scope_of_match(match: ResolverMatch) -> str:
    return view_scope(match.func) or route_of(match)


def route_of(match: ResolverMatch) -> str:
    return match.view_name if match.url_name else match.route


def view_scope(view: object) -> str | None:
    """Return the ``throttle_scope`` of a view; None where it has none, or only an instance would tell."""
    return scope_text(view_attribute(view, "throttle_scope"))


def scope_text(value: object) -> str | None:
    return str(value) if isinstance(value, (str, Promise)) and value else None


def view_attribute(view: object, name: str) -> Any:
    """Return what a view carries under a name: as_view() was given it, or the function has it, or the class.

    None where it carries nothing. A decorator that sets an attribute sets it on the function.
    """
    while isinstance(view, partial) and name not in vars(view):
        view = view.func
    given = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None) or {}
    if name in given:
        return given[name]
    if name in getattr(view, "__dict__", ()):
        return vars(view)[name]
    return getattr(getattr(view, "view_class", None) or getattr(view, "cls", None) or view, name, None)


def scope_and_cost(view: object, request: HttpRequest) -> tuple[str, Any]:
    """Return the scope of a view of REST framework while it answers, and its ``throttle_cost``, None without.

    The scope is the view's ``throttle_scope``, else its route's name, else its route. An attribute of the instance
    comes first, then one that a decorator has set on the function, then the class's.
    """
    match = request.resolver_match  # None when called directly; one that a site made by hand may have no route
    scope, cost = getattr(view, "throttle_scope", None), getattr(view, "throttle_cost", None)
    function = getattr(match, "func", None)
    if function is not None and getattr(function, "cls", None) is type(view):
        own, marks = vars(view), vars(function)
        if "throttle_scope" in marks and "throttle_scope" not in own:
            scope = marks["throttle_scope"]
        if "throttle_cost" in marks and "throttle_cost" not in own:
            cost = marks["throttle_cost"]
    if type(scope) is not str or not scope:
        name = type(view).__name__ if match is None or getattr(match, "route", None) is None else route_of(match)
        scope = scope_text(scope) or name
    return scope, cost


@lru_cache(maxsize=4096)
def view_cost(view: Any) -> Any:
    """Return the ``throttle_cost`` of a view for a request that has not come to it: a number, or a function.

    1 for a function of a view of REST framework, which gets REST framework's request: its throttle class asks it.
    """
    kind: Any = getattr(view, "view_class", None)
    cost = view_attribute(view, "throttle_cost")
    if cost is None or isinstance(cost, property) or (callable(cost) and hasattr(view, "cls")):
        return 1
    if isinstance(cost, FunctionType) and cost is getattr(kind, "throttle_cost", None):
        return own_function(kind(**view.view_initkwargs).throttle_cost)  # as each instance has it
    return cost


# The events of a request: it is counted, and it is in flight until it has been answered.
REQUEST_EVENTS: Final = ("request", "inflight")
_STATE: Final = "_throttle_state"
EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})
_SUCCESSES: Final = range(HTTPStatus.BAD_REQUEST)


class RequestState:
    """What entry points know and owe of a request: ``has_finisher`` once an entry point will finish it.

    ``callers`` are the caller as each entry point knows it, and ``decisions`` what they have decided. ``byte_calls``
    are the rules that count bytes, and the call that each was last asked about. ``place`` is where the middleware took
    the request to go. ``meter`` is in use from the first entry point on. ``ledger`` has what was charged; some of it
    may go back by the answer's status where a rule ``counts_some`` answers, or where an entry point ``has_refused``.
    ``drop_in_ledger`` is that of drop-ins: as in REST framework, what they charged stays where only drop-ins refuse.
    ``refunds`` are those that the answer has called for; it is a refusal where ``is_refused``. Where an entry point
    ``has_reserved`` costs, they are settled once there is an answer; ``call`` are those of the door. ``match`` and
    ``method`` are those of the request when it ended. ``ended_at`` and ``ended_cpu`` are when the answer was made, on
    the clocks of the meter. ``queue_slots`` are the decisions by which rules may have reserved a queue slot.
    """

    # A request has values of its own only for what happens to it: most are charged once, and owe nothing.
    meter: Meter
    _ledger: Ledger | None = None
    #: True while the request was decided once, by ``plain_request``, and nobody has read the ledger.
    is_plain: bool = False
    #: True once the request has been finished: what was charged stays.
    has_ended: bool = False
    has_finisher: bool = False
    callers: tuple[Caller, ...] = ()
    decisions: tuple[Decision, ...] = ()
    slots: Sequence[Slot] = ()
    byte_calls: Mapping[str, Call] = EMPTY
    place: RoutedRequest = RoutedRequest("")
    call: Call | None = None
    match: ResolverMatch | None = None
    method: str | None = None
    ended_at: float | None = None
    ended_cpu: float | None = None
    refunds: tuple[Correct, ...] = ()
    drop_in_ledger: Ledger | None = None
    counts_some: bool = False
    has_reserved: bool = False
    has_refused: bool = False
    rule_has_refused: bool = False
    is_refused: bool = False
    queue_slots: Mapping[str, Decision] = EMPTY
    has_charged: bool = False
    _spending: Spending | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the request, made when it is first read; that of a plain request has its one decision."""
        if self._ledger is not None:
            return self._ledger
        ledger = Ledger()
        if self.is_plain:
            ledger.note(self.decisions[0])
            if self.has_ended:
                ledger.drop()
        made: Ledger = self.__dict__.setdefault("_ledger", ledger)  # threads of one request have one ledger
        self.is_plain = False
        return made

    def become_finisher(self, caller: Caller) -> bool:
        """True for the first entry point that a request comes to: it finishes the request, and no other does."""
        if self.has_finisher:
            return False
        self.has_finisher, self.callers = True, (caller,)
        return True

    def note_apart(self, decision: Decision, caller: Caller) -> None:
        """Note the decision of a drop-in, whose rule no other entry point applies."""
        self.decisions += (decision,)
        self.callers += (caller,)
        if not decision.allowed:
            self.has_refused = True
        if self.drop_in_ledger is None:
            self.drop_in_ledger = Ledger()
        self.drop_in_ledger.note(decision)

    def note(self, decision: Decision, call: Call | None = None) -> None:
        """Note a decision, also for the entry points that come after, and what is owed for it.

        ``call`` are those that were decided.
        """
        self.decisions += (decision,)
        if not decision.allowed:
            self.has_refused = self.rule_has_refused = True
            return
        self.ledger.note(decision, 1 if call is None else call.cost)
        self.has_charged = True
        answered = decision.answered
        if answered is None or not answered[0].charges.rules.needs_no_settlement:
            self._note_owed(decision, call, answered)
        if decision.lease is not None:
            self.slots = (*self.slots, Slot(decision.lease, get_store().leases))

    @property
    def leases(self) -> tuple[Lease, ...]:
        """What entry points hold for the request."""
        return tuple([slot.lease for slot in self.slots if slot.lease is not None])

    def _note_owed(self, decision: Decision, call: Call | None, answered: tuple[Decide, Answers] | None) -> None:
        """Note what may be owed for a call that has passed."""
        if answered is not None and (rules := answered[0].charges.rules).is_plain:
            if rules.is_settled:
                self._note_settled(call, counts_some=rules.counts_some)
            if rules.deferring:
                self.queue_slots = {**self.queue_slots, **dict.fromkeys(rules.deferring, decision)}
            return
        for outcome in decision.outcomes:
            if outcome.deferred_for:
                self.queue_slots = {**self.queue_slots, outcome.rule: decision}
            if call and outcome.unit == "bytes":
                self.byte_calls = {**self.byte_calls, outcome.rule: call}
        self._note_settled_of(decision.ledger.entries, call)

    def note_read(self, decision: Decision, call: Call) -> None:
        """Note what reading the body was charged; it stays so, unless its rules themselves say otherwise."""
        settled = tuple([entry for entry in decision.ledger.entries if entry.charge.rule.is_settled])
        self.ledger.add(settled)
        self._note_settled_of(settled, call)

    def _note_settled_of(self, entries: Sequence[Entry], call: Call | None) -> None:
        rules = [entry.charge.rule for entry in entries]
        if any(rule.is_settled for rule in rules):
            self._note_settled(call, counts_some=any(rule.count_on or rule.refund_on for rule in rules))

    def _note_settled(self, call: Call | None, *, counts_some: bool) -> None:
        self.has_reserved = True
        self.counts_some = self.counts_some or counts_some
        self.call = call or self.call

    def end_charging(self) -> None:
        """What was charged so far stays, whatever the answer: the request has been finished."""
        if self.has_reserved:
            self.ledger.end()
        elif self._ledger is not None:
            self._ledger.drop()
        self.has_ended, self.has_reserved, self.drop_in_ledger = True, False, None

    def note_end(self, response: object = None) -> None:
        """The answer has been made."""
        self.ended_at = perf_counter()
        self.ended_cpu = thread_time() if self.meter.thread == get_ident() else None

    def begin_again(self) -> None:
        """Nothing was charged for what the request is used for next."""
        if self._ledger is not None:
            self._ledger.forget_costs()
        self.has_ended = self.is_plain = self.has_charged = False

    @property
    def unsettled(self) -> tuple[Entry, ...]:
        """The entries that have yet to be settled, as the request has ended."""
        return () if self._ledger is None else self._ledger.unsettled

    def is_known(self) -> bool:
        """Whether the caller is logged in, as far as any entry point knows."""
        for caller in reversed(self.callers):
            if getattr(caller, "is_known", False) or caller.is_("authenticated"):
                return True
        return False

    @property
    def spending(self) -> Spending:
        if self._spending is not None:
            return self._spending
        # Threads of one request have one object; a lock would stay held in a child that is forked meanwhile.
        made: Spending = self.__dict__.setdefault("_spending", Spending())
        return made

    def take_slots(self) -> Sequence[Slot]:
        """The slots, which are no longer the request's to release."""
        slots, self.slots = self.slots, ()
        return slots

    def take_refunds(self, status: int | str) -> tuple[Correct, ...]:
        """What goes back, once, after an answer of that status, or CANCELLED where nobody was left to be answered.

        A request that some entry point has refused is charged by none. A view may still have answered it, as it handles
        a refusal of something that it called.
        """
        refused = self.has_refused and status != CANCELLED and status not in _SUCCESSES
        refunds = self.ledger.refund_for_refusal() if refused else self.ledger.refund_for_status(status)
        if refused and self.rule_has_refused and self.drop_in_ledger is not None:
            refunds += self.drop_in_ledger.refund_for_refusal()
        self.counts_some = self.has_refused = self.rule_has_refused = self.has_reserved = False
        self.is_refused = self.is_refused or refused
        self.refunds += refunds
        return refunds

    def correct_scope(self, covered: Collection[str]) -> None:
        """Have what was charged by rules that do not cover the view's scope go back with the next decision.

        ``covered`` are the names of those that do. No header field tells of the others.
        """
        ledger = self.ledger
        ledger.misplaced = frozenset(pair for pair in ledger.costs if pair[0] not in covered)
        if ledger.misplaced:
            self.decisions = tuple(
                [
                    decision._replace(
                        outcomes=tuple([o for o in decision.outcomes if (o.rule, o.ident) not in ledger.misplaced])
                    )
                    for decision in self.decisions
                ]
            )

    def take_queue_slot(self, rule: str) -> QueueSlot | None:
        """The queue slot that was reserved under a rule, which is taken once."""
        decision = self.queue_slots.get(rule)
        if decision is None:
            return None
        self.queue_slots = {name: other for name, other in self.queue_slots.items() if name != rule}
        return queue_slot_under(decision, rule)


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
    if type(stream) is LimitedStream:  # as of most requests
        limit = stream.limit
        if limit == 0:
            return 0
        return max(0, limit) if type(limit) is int else _readable(request, stream)
    if getattr(stream, "closed", False) or not hasattr(stream, "seekable") or not stream.seekable():
        return _readable(request, stream)
    at = stream.tell()
    size: int = stream.seek(0, SEEK_END)
    stream.seek(at)
    return size


def _readable(request: HttpRequest, stream: object) -> int:
    try:
        limit = int(getattr(stream, "limit", None) or request.META.get("CONTENT_LENGTH") or 0)
    except (TypeError, ValueError):  # Django reads nothing then
        return 0
    return max(0, limit)


def decisions_of(request: HttpRequest) -> tuple[Decision, ...]:
    state: RequestState | None = request.__dict__.get(_STATE)
    return () if state is None else state.decisions


class RequestCall(Call):
    """The call of a request, with what other entry points have charged for it; later ones may give that back.

    Its size is read when a rule first asks for it, which is before a view reads the body.
    """

    refundable = True

    def __init__(
        self,
        request: HttpRequest,
        state: RequestState,
        scope: str,
        caller: Caller,
        cost: int = 1,
        events: tuple[str, ...] = REQUEST_EVENTS,
    ) -> None:
        self.scope, self.events, self.caller, self.cost = scope, events, caller, cost
        self.method, self._request = method_of(request), request
        if state.has_charged:
            self.charged, self.leases = state.ledger, state.leases

    @cached_property
    def size(self) -> int:  # type: ignore[override]
        return size_of(self._request)


def state_of(request: HttpRequest) -> RequestState:
    """The state of the request; the first time an empty one, whose meter is put in use."""
    state: RequestState | None = request.__dict__.get(_STATE)
    if state is None:
        state = request.__dict__[_STATE] = RequestState()
        state.meter = Meter()
        if conf().METER:
            in_use.set(state.meter)
    return state
