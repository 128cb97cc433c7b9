"""``@throttle``: limits a view, or any callable, by one rule."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial, wraps
from types import FunctionType
from typing import Any, Final, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.views import View

from django_throttle import limiter, rulebook
from django_throttle.core import Decision
from django_throttle.core.commands import check_cost
from django_throttle.core.decide import release_lease
from django_throttle.core.decision import Reason, deciding_outcome
from django_throttle.core.io import Io, run
from django_throttle.costs.measured import measured
from django_throttle.exceptions import InvalidIdent
from django_throttle.http.deferred import DEFERRAL, Deferral, Payload, deferral
from django_throttle.http.input_bytes import note_decision
from django_throttle.http.request_state import RequestCall, RequestState, django_request, method_of, state_of
from django_throttle.http.serve import serve
from django_throttle.identity import AsgiCaller, RequestCaller, is_async
from django_throttle.identity.call import BY_KEY, Call, cost_of
from django_throttle.identity.caller import NO_TEXT, IdentCaller, KeyedCaller, given_ident, is_user, normalize_ident
from django_throttle.identity.keys import User, shortened
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

__all__ = ["throttle"]

# What tasks have (Celery, Django, Dramatiq), and a wrapper around one would hide.
TASK_METHODS: Final = ("delay", "enqueue", "send_with_options")
# What a view may answer beside a response: frameworks make one of it.
CONTENT: Final = (HttpResponseBase, Mapping, list, tuple, str, bytes)
# Functions that @throttle has no way to know the caller of, by rule and name, and where they may have a request.
unidentified: Final[dict[tuple[str, str], tuple[Callable[..., object], str]]] = {}
# Methods under @throttle that get a request after self, as views do: the rule, the function, the name of the request.
request_methods: Final[list[tuple[str, Callable[..., object], str]]] = []
# The attribute by which Django Ninja knows what it has made of a function.
OPERATION: Final = "_ninja_operation"
# Functions around those that Ninja has taken, which it may take later: the rule, the function, the former operation.
around_operations: Final[list[tuple[str, Callable[..., object], object]]] = []
# What is under a rule by its name: the rule, and the names of those functions.
decorated: Final[dict[str, set[str]]] = {}
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Ident = str | Callable[..., Any] | None
Cost = int | Callable[..., int]


def throttle(
    rule: str,
    *,
    cost: Cost = 1,
    ident: Ident = None,
    defer_to: object = None,
    payload: Payload = None,
    show_result: bool = False,
) -> Callable[[F], F]:
    """Put a view, or any callable, sync or async, under the rule of that name, whatever its scopes and events.

    A view's caller is found by the rule's key, and a refused one is answered with 429. Any other callable
    needs ``ident``, and raises Refused. ``ident`` is a text, or a function of the call's arguments that returns a
    text, a number, a user, or None where the call is not limited.
    ``cost`` is a number or a function of the arguments. A rule that is switched off, or that nobody has made
    yet, limits nothing. Around a class of Django's views it covers all its methods. What a concurrency rule
    holds goes back when the callable returns, or when the response has been sent.
    ``defer_to`` is the task that does the work later under a rule of action "defer"; ``payload``, a function of the
    view's arguments, returns the task's, and ``show_result`` shows what it returns to the caller. Decorators below this
    one are skipped when a call is deferred, so none may stand there that can refuse it: then no call is deferred, but
    refused. Around a class it covers the methods that answer, after ``dispatch``. HEAD and OPTIONS are never deferred.
    Raises TypeError around what it cannot limit, and says what to do instead; ValueError for an empty name, InvalidCost
    for a number that is no cost.
    """
    _check_name(rule)

    later = deferral(rule, defer_to, payload, show_result)

    def decorate(function: F) -> F:
        _check_decoration(function, cost, ident, later is not None)
        decorated.setdefault(rule, set()).add(getattr(function, "__qualname__", "") or repr(function))
        if isinstance(function, type):
            for name in _methods_around(function, later is not None):
                if later is not None:
                    later.below(getattr(function, name))
                function = method_decorator(decorate, name=name)(function)
            return function
        if ident is None and (where := _lacks_request(function)) is not None:
            unidentified[rule, getattr(function, "__qualname__", "")] = function, where
        elif ident is None and (argument := _request_of_method(function)) is not None:
            request_methods.append((rule, function, argument))
        awaits = _is_awaited(function)
        deferred = None if later is None else later.below(function)

        def decided(args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
            return _Call(rule, cost, ident, deferred, function, args, kwargs).answer(awaits)

        around = throttled(function, decided)
        if (operation := vars(function).get(OPERATION) if hasattr(function, "__dict__") else None) is not None:
            around_operations.append((rule, around, operation))
        return around

    vars(decorate)[DEFERRAL] = later
    return decorate


def _methods_around(view: Any, is_deferred: bool) -> list[str]:
    """Return the methods of a class-based view that are limited.

    After ``dispatch`` where that decides who is calling, as in REST framework, or whether the call may be deferred.
    """
    if not (is_deferred or hasattr(view, "throttle_classes")):
        return ["dispatch"]
    return [name for name in view.http_method_names if name != "options" and hasattr(view, name)]


def throttled(function: F, decided: Callable[[tuple[object, ...], dict[str, object]], Any]) -> F:
    """The function that is called in place of this one.

    It has the same globals, as Django Ninja resolves the names of annotations in them.
    """

    def called(*args: object, **kwargs: object) -> object:
        return decided(args, kwargs)

    async def acalled(*args: object, **kwargs: object) -> object:
        return await decided(args, kwargs)

    made = acalled if _is_awaited(function) else called
    names = getattr(inspect.unwrap(function), "__globals__", None)
    if names is not None:
        made = FunctionType(made.__code__, names, closure=made.__closure__)
    return wraps(function)(made)  # type: ignore[return-value]


class _Call:
    """One call of the decorated function; ``subject`` is its request, as the view gets it, or None."""

    def __init__(
        self,
        rule: str,
        cost: Cost,
        ident: Ident,
        later: Deferral | None,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self.rule, self.ident, self._later = rule, ident, later
        self._function, self._args, self._kwargs = function, args, kwargs
        self._cost = cost
        self._refused: tuple[Call, Decision] | None = None  # which waits for a slot
        found = args[isinstance(args[0], View) :][:1] if args else ()  # after self, in a view's method
        self.subject: Any = found[0] if found and isinstance(django_request(found[0]), HttpRequest) else None

    def answer(self, awaits: bool) -> Any:
        """Decide the call, then make it or refuse it; what this returns is to be awaited where the function is."""
        go = partial(self._function, *self._args, **self._kwargs)
        if self.subject is None:
            if self._later is not None:
                raise TypeError("defer_to goes with views: a function that gets no request has nobody to tell of it")
            caller = self._caller_in_arguments()
            if awaits:
                return self._call_unless_refused(LoopIo(get_store()), caller, go)
            return run(self._call_unless_refused(BlockingIo(get_store()), caller, go))
        caller, instead = RequestCaller(self.subject), None
        if self._later is not None:
            rest = self._args[isinstance(self._args[0], View) + 1 :]
            instead = partial(self._answered_later, self._later, caller, rest)
        decide = self._adecide if awaits else self._decide
        answer = partial(_aview if awaits else _view, self.rule, self._function, go)
        answered = serve(django_request(self.subject), caller, decide, answer, instead, awaits=awaits)
        return answered if awaits else run(answered)

    async def _call_unless_refused(
        self, io: StoreIo, known_caller: KeyedCaller | None, go: Callable[[], Any]
    ) -> object:
        """Make a call that is no request."""
        call = await io.call(partial(self.call, known_caller), partial(self.acall, known_caller))
        decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
        limiter.raise_if_refused(decision)
        try:
            return await measured(io, decision.ledger, call.scope, lambda: io.call(go, go))
        finally:
            await release_lease(io, decision.lease)

    async def _answered_later(
        self, later: Deferral, caller: RequestCaller, rest: tuple[object, ...], io: Io
    ) -> HttpResponse | None:
        if self._refused is not None:
            return await later.lined_up(io, caller, rest, self._kwargs, *self._refused)
        return await later.answered(io, caller, rest, self._kwargs)

    def _decide(self, request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
        call = self._with_report(self.call(caller))
        return note_decision(request, state, call, self._noted(call, limiter.decide(call)))

    async def _adecide(self, request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
        if self._later is not None:  # which asks for its rule
            await rulebook.acurrent()
        call = self._with_report(await self.acall(caller))
        return note_decision(request, state, call, self._noted(call, await limiter.adecide(call)))

    def _with_report(self, call: Call) -> Call:
        """Have a refusal reported only where the call is not done later."""
        call.retries_when_refused = self._later is not None and self._later.defers_to_slots()
        return call

    def _noted(self, call: Call, decision: Decision) -> Decision:
        """Return the decision, as one that passes where a refused call may wait for a slot."""
        outcome = deciding_outcome(decision) if call.retries_when_refused and not decision.allowed else None
        if outcome is None or outcome.reason is not Reason.EXCEEDED:
            return decision
        self._refused = call, decision
        return decision._replace(allowed=True)

    def call(self, known_caller: KeyedCaller | None) -> Call:
        """Raises InvalidIdent for a call without a request whose ident is not given."""
        lets = (SynchronousOnlyOperation,)  # see acall
        price = cost_of(self._cost, *self._args, options=self._kwargs, what="call", lets=lets)
        ident, is_untrusted, user = self._ident_of_call(known_caller)
        caller = known_caller or IdentCaller(ident or NO_TEXT, account=user)
        if self.subject is None:
            method = method_of(django_request(known_caller.subject)) if isinstance(known_caller, RequestCaller) else ""
            return Call(
                self.rule, (), caller, price, rule=self.rule, ident=ident, is_untrusted=is_untrusted, method=method
            )
        request = django_request(self.subject)
        call = RequestCall(request, state_of(request), self.rule, caller, price, ())
        call.rule, call.ident = self.rule, ident
        return call

    async def acall(self, known_caller: KeyedCaller | None) -> Call:
        """The same on an event loop: in a thread where a function of the site makes a query."""
        if isinstance(known_caller, RequestCaller) and self.subject is not None:
            await known_caller.aload()
        try:
            return self.call(known_caller)
        except SynchronousOnlyOperation:
            return await sync_to_async(self.call)(known_caller)

    def _ident_of_call(self, known_caller: KeyedCaller | None) -> tuple[str | None, bool, User | None]:
        """The ident, whether nothing else identifies the caller, and the user if the site's function returned one."""
        if callable(self.ident):
            value = self.ident(*self._args, **self._kwargs)
            user = value if is_user(value) else None
            return given_ident("ident", value, known_caller), known_caller is None and user is None, user
        if self.ident is None and self.subject is None:
            where = _place_of_request(self._function, self._args, self._kwargs)
            raise InvalidIdent(_without_ident(self.rule, self._function, where))
        return (BY_KEY if self.ident is None else shortened(normalize_ident(self.ident))), False, None

    def _caller_in_arguments(self) -> KeyedCaller | None:
        """The caller of a function that is no view: of a request, or a consumer, among its arguments."""
        for found in (*self._args, *self._kwargs.values()):
            if isinstance(django_request(found), HttpRequest):
                return RequestCaller(django_request(found))
            if isinstance(scope := getattr(found, "scope", None), dict):
                return AsgiCaller(scope)
        return None


def _view(rule: str, function: object, go: Callable[[], object], request: HttpRequest) -> object:
    return _checked_answer(rule, function, go())


async def _aview(rule: str, function: object, go: Callable[[], Awaitable[object]], request: HttpRequest) -> object:
    return _checked_answer(rule, function, await go())


def _checked_answer(rule: str, function: object, answer: T) -> T:
    """Return what a view has answered. Raise TypeError for what no view answers.

    A refusal would be a response in place of a value, and true. Django Ninja makes a response of any value.
    """
    if isinstance(answer, CONTENT) or hasattr(answer, "status_code") or inspect.isawaitable(answer) or _is_in_ninja():
        return answer
    name = getattr(function, "__qualname__", type(function).__name__)
    raise TypeError(
        f"{name} returns {answer!r:.80}, so it is no view, and a refusal, which is a response, would be taken for its "
        f'answer: in place of @throttle ask in it, if not allows("{rule}", request), of django_throttle.limiter'
    )


def _is_in_ninja() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("ninja."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _place_of_request(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> str | None:
    """Return where a call has a request: "request", or "self.request"; None where it has none."""
    with suppress(TypeError, ValueError):
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        for name, value in arguments.items():
            if isinstance(django_request(value), HttpRequest):
                return name
            if isinstance(django_request(getattr(value, "request", None)), HttpRequest):
                return f"{name}.request"
    return None


def _without_ident(rule: str, function: Callable[..., object], where: str | None) -> str:
    """Return what to write in place of a decorator that has no way to know the caller."""
    name = getattr(function, "__qualname__", type(function).__name__)
    fault = f'@throttle("{rule}") around {name}: a callable that gets no request'
    fault = f"{fault} needs ident=, a text or a function of its arguments"
    if where is None:
        return fault
    hint = f'ask in the function, if not allows("{rule}", {where}), of django_throttle.limiter'
    return f"{fault}. It has a request in {where}: {hint}, or write ident=lambda {_parameters(function)}: {where}.user"


def _parameters(function: Callable[..., object]) -> str:
    """Return the parameters of a function as they are written, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "*args, **kwargs"
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))[1:-1]


# What looks like the request of a view, as its parameter is called.
REQUESTS: Final = re.compile("_?re?q")


def _lacks_request(function: Callable[..., object]) -> str | None:
    """Return where a function that is no view may have a request, by its parameters; None for what may be a view."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    names = list(parameters)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return None
    is_method = names[:1] == ["self"]
    first = names[is_method:][:1]
    if (first and REQUESTS.match(first[0])) or getattr(function, "__name__", "") in View.http_method_names:
        return None
    if named := list(filter(REQUESTS.match, names)):
        return named[0]
    if is_method:
        return "self.request"
    return None if names else ""


def _request_of_method(function: Callable[..., object]) -> str | None:
    """Return the name of the first parameter after ``self`` that is called as a request is; None for any other."""
    try:
        first, second = list(inspect.signature(function).parameters)[:2]
    except (TypeError, ValueError):
        return None
    return second if first == "self" and REQUESTS.match(second) else None


def is_of_view(function: Callable[..., object]) -> bool:
    """Return False for a method of a class that is no view, nor a base of one; True where the class cannot be found.

    A class without subclasses whose method is called as those of views are may become a base of one.
    """
    owner: object = sys.modules.get(getattr(function, "__module__", ""))
    for name in getattr(function, "__qualname__", "").split(".")[:-1]:
        owner = getattr(owner, name, None)
    if not isinstance(owner, type):
        return True
    kinds, may_become = [owner], function.__name__ in View.http_method_names and not type.__subclasses__(owner)
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    return may_become or any(issubclass(kind, View) for kind in kinds)


def _is_awaited(function: object) -> bool:
    """Whether it returns an awaitable, as ``dispatch`` and ``options`` of an asynchronous class-based view do too."""
    owner = getattr(getattr(function, "func", function), "__self__", None)
    return iscoroutinefunction(function) or is_async(function) or getattr(owner, "view_is_async", False)


def _check_name(rule: object) -> None:
    if not isinstance(rule, str) or not rule:
        error = ValueError if rule == "" else TypeError
        raise error('@throttle is given the name of a rule: @throttle("search")')


def _check_decoration(function: object, cost: object, ident: object, is_deferred: bool) -> None:
    if isinstance(function, (classmethod, staticmethod, property)):
        raise TypeError(f"put @throttle below @{type(function).__name__}, next to the function")
    if any(callable(getattr(function, name, None)) for name in TASK_METHODS):
        raise TypeError("put @throttle below the decorator that makes a task (@shared_task), next to the function")
    if isinstance(function, type):
        _check_class(function, is_deferred)
    if not callable(function):
        raise TypeError(f"@throttle goes around something to call, not around {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a generator runs after the call, piece by piece: put @throttle around what iterates over it")
    if not callable(cost):
        check_cost(cost)
    if ident is not None and not callable(ident) and not (isinstance(ident, str) and ident):
        raise TypeError(f"ident is a text or a function of the call's arguments, not {ident!r}")
    if any(map(is_async, filter(callable, (cost, ident)))):
        raise TypeError("cost and ident are plain functions, not async ones")


def _check_class(kind: type, is_deferred: bool) -> None:
    if issubclass(kind, View) and is_deferred:
        if not _methods_around(kind, is_deferred):
            raise TypeError(f"put @throttle around the actions of {kind.__name__}: it has them in place of methods")
    elif not issubclass(kind, View) or hasattr(kind, "throttle_classes"):
        raise TypeError(
            f"@throttle goes around functions, methods and Django's class-based views, not around {kind.__name__}: "
            "a view of REST framework has throttle_classes = [RuleThrottle], a consumer the ThrottledConsumerMixin"
        )
