"""State of one HTTP request: its scope and size, the decisions of entry points, and the corrections they owe."""

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

from django_throttle.core import Decision, Lease
from django_throttle.core.commands import Answers, Correct, Decide, LedgerEntry
from django_throttle.core.ledger import Ledger
from django_throttle.core.options import CANCELLED
from django_throttle.costs.meter import Meter, current_meter
from django_throttle.http.slots import Slot
from django_throttle.http.spending import Spending
from django_throttle.identity.call import Call, Caller
from django_throttle.identity.site_functions import own_function
from django_throttle.later.queue_slots import QueueSlot, queue_slot_under
from django_throttle.stores import get_store

#: The scope of paths that no route matches.
NO_ROUTE: Final = "404"


class RoutedRequest(NamedTuple):
    """Scope and resolver match of a request's path. The match is None if no route matches the path."""

    scope: str
    match: ResolverMatch | None = None

    def has_scope_of(self, match: ResolverMatch) -> bool:
        """Return True if the match, as Django resolved it, is of the same scope."""
        own = self.match
        if own is None or own.func is not match.func or own.route != match.route:
            return scope_of_match(match) == self.scope
        return own.view_name == match.view_name or scope_of_match(match) == self.scope


def route_request(request: HttpRequest) -> RoutedRequest:
    """Resolve the path of a request. The scope is the view's ``throttle_scope``, else the route's, never the raw path.

    Results for short paths are cached. If a route depends on more than its path, ``process_view`` sees another route.
    """
    path, resolver = request.path_info, get_resolver(getattr(request, "urlconf", None))  # as Django's handler does
    urlconf: Any = resolver.urlconf_name
    language = get_language() if is_language_prefix_patterns_used(urlconf)[0] else None
    resolve = _resolve_path if len(path) <= MAX_CACHED_PATH_CHARS else _resolve_path.__wrapped__
    return resolve(resolver, path, language)


MAX_CACHED_PATH_CHARS: Final = 200


@lru_cache(maxsize=4096)
def _resolve_path(resolver: URLResolver, path: str, language: str | None) -> RoutedRequest:
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
    """Return the ``throttle_scope`` of a view. Return None if it has none, or if only its instances have one."""
    return scope_text(view_attribute(view, "throttle_scope"))


def scope_text(value: object) -> str | None:
    return str(value) if isinstance(value, (str, Promise)) and value else None


def view_attribute(view: object, name: str) -> object:
    """Return an attribute of a view: an argument of as_view(), else the function's, else the class's, else None.

    Decorators set attributes on the function.
    """
    while isinstance(view, partial) and name not in vars(view):
        view = view.func
    initkwargs = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", None) or {}
    if name in initkwargs:
        return initkwargs[name]
    if name in getattr(view, "__dict__", ()):
        return vars(view)[name]
    return getattr(getattr(view, "view_class", None) or getattr(view, "cls", None) or view, name, None)


def scope_and_cost(view: object, request: HttpRequest) -> tuple[str, Any]:
    """Return the scope of a running REST framework view, and its ``throttle_cost`` or None.

    The scope is the view's ``throttle_scope``, else the name of its route, else its route. Attributes of the instance
    come first, then those that a decorator has set on the function, then the class's.
    """
    match = request.resolver_match  # None if called directly; a match that a site made by hand may have no route
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
    """Return the ``throttle_cost`` of a view that has not been called yet: a number, or a function of the request.

    Return 1 for a function of a REST framework view. It takes REST framework's request, so the throttle class calls it.
    """
    kind: Any = getattr(view, "view_class", None)
    cost = view_attribute(view, "throttle_cost")
    if cost is None or isinstance(cost, property) or (callable(cost) and hasattr(view, "cls")):
        return 1
    if isinstance(cost, FunctionType) and cost is getattr(kind, "throttle_cost", None):
        return own_function(kind(**view.view_initkwargs).throttle_cost)  # as each instance has it
    return cost


#: Events of a request: it is counted, and it is in flight until it has been answered.
REQUEST_EVENTS: Final = ("request", "inflight")
_STATE: Final = "_throttle_state"
EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})
_SUCCESSES: Final = range(HTTPStatus.BAD_REQUEST)


class RequestState:
    """State that the entry points of one request share. They note decisions in it, and the first one finishes it."""

    # Class attributes are defaults: most requests are charged once and owe nothing, so they set few attributes.

    #: In use from the first entry point on.
    meter: Meter
    _ledger: Ledger | None = None
    #: True while the request was decided once, by ``plain_request``, and its ledger was not read.
    is_plain: bool = False
    #: True once the request has been finished: its charges are final.
    has_ended: bool = False
    #: True once an entry point has undertaken to finish the request.
    has_finisher: bool = False
    #: The caller as each entry point knows it, in their order.
    callers: tuple[Caller, ...] = ()
    #: Decisions of entry points, in their order.
    decisions: tuple[Decision, ...] = ()
    slots: Sequence[Slot] = ()
    #: Names of rules that count bytes, with the last call that each decided.
    byte_calls: Mapping[str, Call] = EMPTY
    #: The route that the middleware resolved.
    routed: RoutedRequest = RoutedRequest("")
    #: The call whose costs are settled.
    call: Call | None = None
    #: Resolver match and method of the request when it ended.
    match: ResolverMatch | None = None
    method: str | None = None
    #: Time of the answer, in seconds on the meter's clocks.
    ended_at: float | None = None
    ended_cpu: float | None = None
    #: Refunds that the answer's status caused.
    refunds: tuple[Correct, ...] = ()
    #: Charges of drop-ins. As in REST framework, they stay if only drop-ins refuse.
    drop_in_ledger: Ledger | None = None
    #: True if a rule refunds charges by the answer's status.
    counts_some: bool = False
    #: True if costs were reserved that are settled after the answer.
    has_reserved: bool = False
    #: True if an entry point has refused the request, and if a rule (not a drop-in) has.
    has_refused: bool = False
    rule_has_refused: bool = False
    #: True if the answer is a refusal.
    is_refused: bool = False
    #: Decisions that may have reserved a queue slot, by name of the rule.
    queue_slots: Mapping[str, Decision] = EMPTY
    has_charged: bool = False
    _spending: Spending | None = None

    @property
    def ledger(self) -> Ledger:
        """Ledger of the request, made at the first access. That of a plain request has its single decision."""
        if self._ledger is not None:
            return self._ledger
        ledger = Ledger()
        if self.is_plain:
            ledger.note(self.decisions[0])
            if self.has_ended:
                ledger.drop()
        shared: Ledger = self.__dict__.setdefault("_ledger", ledger)  # threads of one request share a ledger
        self.is_plain = False
        return shared

    def become_finisher(self, caller: Caller) -> bool:
        """Return True for the first entry point of a request. Only that one finishes the request."""
        if self.has_finisher:
            return False
        self.has_finisher, self.callers = True, (caller,)
        return True

    def note_drop_in(self, decision: Decision, caller: Caller) -> None:
        """Note the decision of a drop-in. No other entry point applies its rule."""
        self.decisions += (decision,)
        self.callers += (caller,)
        if not decision.allowed:
            self.has_refused = True
        if self.drop_in_ledger is None:
            self.drop_in_ledger = Ledger()
        self.drop_in_ledger.note(decision)

    def note(self, decision: Decision, call: Call | None = None) -> None:
        """Note the decision of a call, its lease and later corrections. Entry points that follow see the decision."""
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
        """Leases that entry points hold for the request."""
        return tuple([slot.lease for slot in self.slots if slot.lease is not None])

    def _note_owed(self, decision: Decision, call: Call | None, answered: tuple[Decide, Answers] | None) -> None:
        """Note the corrections that an allowed call may need."""
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

    def note_read_bytes(self, decision: Decision, call: Call) -> None:
        """Note charges for reading the body. They are final unless their rules settle them by the answer."""
        settled = tuple([entry for entry in decision.ledger.entries if entry.charge.rule.is_settled])
        self.ledger.add(settled)
        self._note_settled_of(settled, call)

    def _note_settled_of(self, entries: Sequence[LedgerEntry], call: Call | None) -> None:
        rules = [entry.charge.rule for entry in entries]
        if any(rule.is_settled for rule in rules):
            self._note_settled(call, counts_some=any(rule.count_on or rule.refund_on for rule in rules))

    def _note_settled(self, call: Call | None, *, counts_some: bool) -> None:
        self.has_reserved = True
        self.counts_some = self.counts_some or counts_some
        self.call = call or self.call

    def end_charging(self) -> bool:
        """Make the charges in the ledger final. Return True if reserves are yet to be settled."""
        if self.has_reserved:
            self.ledger.end()
        elif self._ledger is not None:
            self._ledger.drop()
        self.has_reserved = False
        return self._ledger is not None and bool(self._ledger.unsettled)

    def note_end(self, response: object = None) -> None:
        """Note the time of the answer."""
        self.ended_at = perf_counter()
        self.ended_cpu = thread_time() if self.meter.thread == get_ident() else None

    def forget_charges(self) -> None:
        """Forget the charges, because the same request is used for another call."""
        if self._ledger is not None:
            self._ledger.forget_costs()
        self.has_ended = self.is_plain = self.has_charged = False

    @property
    def unsettled(self) -> tuple[LedgerEntry, ...]:
        """Ledger entries of the ended request that have yet to be settled."""
        return () if self._ledger is None else self._ledger.unsettled

    def is_logged_in(self) -> bool:
        """Return True if the caller is logged in, as far as any entry point knows."""
        for caller in reversed(self.callers):
            if getattr(caller, "is_logged_in", False) or caller.is_("authenticated"):
                return True
        return False

    @property
    def spending(self) -> Spending:
        if self._spending is not None:
            return self._spending
        # Threads of one request share the object. A lock would stay held in a child forked meanwhile.
        shared: Spending = self.__dict__.setdefault("_spending", Spending())
        return shared

    def take_slots(self) -> Sequence[Slot]:
        """Return the slots and give up their ownership: the request no longer releases them."""
        slots, self.slots = self.slots, ()
        return slots

    def take_refunds(self, status: int | str) -> tuple[Correct, ...]:
        """Return the refunds after an answer of that status, once. The status is CANCELLED if the client disconnected.

        If an entry point has refused the request, all charges are refunded, unless the answer is a success. A view can
        answer with success when it handles a refusal of something that it called.
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
        """Refund charges of rules that do not cover the view's scope, with the next decision.

        ``covered`` are the names of the rules that cover it. Header fields no longer mention the others.
        """
        ledger = self.ledger
        ledger.misplaced = frozenset(pair for pair in ledger.costs if pair[0] not in covered)
        if ledger.misplaced:
            self.decisions = tuple(
                [
                    decision._replace(
                        outcomes=tuple(
                            [
                                outcome
                                for outcome in decision.outcomes
                                if (outcome.rule, outcome.ident) not in ledger.misplaced
                            ]
                        )
                    )
                    for decision in self.decisions
                ]
            )

    def take_queue_slot(self, rule: str) -> QueueSlot | None:
        """Return the queue slot reserved under a rule, once. Return None if there is none, or none left."""
        decision = self.queue_slots.get(rule)
        if decision is None:
            return None
        self.queue_slots = {name: decision for name, decision in self.queue_slots.items() if name != rule}
        return queue_slot_under(decision, rule)


def django_request(request: object) -> Any:
    """Return Django's request, also for the wrapper that REST framework's views get."""
    return getattr(request, "_request", request)


def method_of(request: HttpRequest) -> str:
    """Return the method in capitals. Headers that override the method are ignored."""
    return (request.method or "").upper()


def size_of(request: HttpRequest) -> int:
    """Return the number of bytes that the view can read from Django's request.

    Under ASGI, Django has read the whole body already, so its size is measured. Under WSGI, Django lets the view read
    Content-Length bytes, and none if that header is missing or no number.
    """
    stream: Any = getattr(request, "_stream", None)
    if type(stream) is LimitedStream:  # as of most requests
        limit = stream.limit
        if limit == 0:
            return 0
        return max(0, limit) if type(limit) is int else _readable(request, stream)
    if getattr(stream, "closed", False) or not hasattr(stream, "seekable") or not stream.seekable():
        return _readable(request, stream)
    position = stream.tell()
    size: int = stream.seek(0, SEEK_END)
    stream.seek(position)
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
    """Call of a request, with the charges of earlier entry points. Later entry points may refund them.

    The size is measured when a rule first needs it, before a view reads the body.
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
    """Return the state of the request. At the first call, make an empty state and start its meter."""
    state: RequestState | None = request.__dict__.get(_STATE)
    if state is None:
        state = request.__dict__[_STATE] = RequestState()
        state.meter = Meter()
        current_meter.set(state.meter)
    return state
