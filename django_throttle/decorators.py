"""Decorator ``@throttle``, which limits a view or any other callable by one rule."""

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
from django_throttle.costs.measured import run_measured
from django_throttle.exceptions import InvalidIdent
from django_throttle.http.deferred import DEFERRAL, Deferral, Payload, deferral
from django_throttle.http.input_bytes import note_decision
from django_throttle.http.request_state import RequestCall, RequestState, django_request, method_of, state_of
from django_throttle.http.serve import serve
from django_throttle.http.view_layers import closure_of
from django_throttle.identity import AsgiCaller, RequestCaller, is_async
from django_throttle.identity.call import BY_KEY, Call
from django_throttle.identity.caller import (
    NO_TEXT,
    IdentCaller,
    KeyedCaller,
    ident_from_value,
    is_user,
    normalize_ident,
)
from django_throttle.identity.keys import User, shortened
from django_throttle.identity.request_body import KeptBody, StreamReadError, is_request_error
from django_throttle.identity.site_functions import cost_of
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo, LoopIo, StoreIo

__all__ = ["throttle"]

#: Methods of tasks (Celery, Django, Dramatiq). A wrapper would hide them.
TASK_METHODS: Final = ("delay", "enqueue", "send_with_options")
#: Types that a view may return: a response, or content from which its framework makes a response.
ANSWER_TYPES: Final = (HttpResponseBase, Mapping, list, tuple, str, bytes)
#: Functions whose caller @throttle cannot identify, by rule and name, and where each may have a request.
functions_without_ident: Final[dict[tuple[str, str], tuple[Callable[..., object], str]]] = {}
#: Methods under @throttle that take a request after self: the rule, the function, the name of the request parameter.
request_methods: Final[list[tuple[str, Callable[..., object], str]]] = []
#: Attribute in which Django Ninja keeps the operation that it has made from a function.
OPERATION: Final = "_ninja_operation"
#: Wrappers around functions that Ninja has registered: the rule, the wrapper, the operation of the wrapped function.
wrapped_operations: Final[list[tuple[str, Callable[..., object], object]]] = []
#: Names of the decorated functions, by rule.
decorated: Final[dict[str, set[str]]] = {}
#: Names of the decorated functions without ``ident``, by rule.
counted_by_key: Final[dict[str, set[str]]] = {}
#: Names of the decorated functions with the cost 0, by rule.
free_of_charge: Final[dict[str, set[str]]] = {}
#: Names of the decorated functions with ``ident`` whose parameters include no request, by rule.
without_request: Final[dict[str, set[str]]] = {}
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
    """Limit a view or any other callable, sync or async, by the named rule. The rule's scopes and events do not matter.

    The rule's key identifies the caller of a view, and a refused request gets a 429. Any other callable needs
    ``ident``, and raises Refused. ``ident`` is a text, or a function of the call's arguments. The function returns a
    text, a number, a user, or None for a call that is not limited. ``cost`` is a number of units, or a function of the
    arguments. A rule that is disabled or does not exist limits nothing. Around a class-based view of Django, all its
    methods are limited. Slots of a concurrency rule are released when the callable returns, or when the response was
    sent.

    ``defer_to`` is the task that does the work later under a rule of action "defer". ``payload`` is a function of the
    view's arguments that returns the task's arguments. ``show_result`` shows the task's result to the caller. A
    deferred call skips decorators below this one. If one of them could refuse the call, the call is refused, not
    deferred. Around a class, only the methods that answer are limited, after ``dispatch``. HEAD and OPTIONS are never
    deferred.

    Raise TypeError for an object that cannot be limited, ValueError for an empty name, and InvalidCost for an invalid
    cost.
    """
    if not isinstance(rule, str) or not rule:
        error = ValueError if rule == "" else TypeError
        raise error('@throttle needs the name of a rule: @throttle("search")')
    later = deferral(rule, defer_to, payload, show_result)

    def decorate(function: F) -> F:
        _check_decoration(function, cost, ident, later is not None)
        named = getattr(function, "__qualname__", "") or repr(function)
        decorated.setdefault(rule, set()).add(named)
        if cost == 0:
            free_of_charge.setdefault(rule, set()).add(named)
        if isinstance(function, type):
            for name in _methods_around(function, later is not None):
                if later is not None:
                    later.below(getattr(function, name))
                function = method_decorator(decorate, name=name)(function)
            return function
        if ident is None:
            counted_by_key.setdefault(rule, set()).add(named)
        if ident is None and (where := _lacks_request(function)) is not None:
            functions_without_ident[rule, getattr(function, "__qualname__", "")] = function, where
        elif ident is None and (argument := _request_of_method(function)) is not None:
            request_methods.append((rule, function, argument))
        if ident is not None and not _may_get_request(function):
            without_request.setdefault(rule, set()).add(named)
        awaits = _is_awaited(function)
        deferred = None if later is None else later.below(function)

        def answer(args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
            return _Call(rule, cost, ident, deferred, function, args, kwargs).answer(awaits)

        wrapper = throttled(function, answer)
        if (operation := vars(function).get(OPERATION) if hasattr(function, "__dict__") else None) is not None:
            wrapped_operations.append((rule, wrapper, operation))
        return wrapper

    vars(decorate)[DEFERRAL] = later
    return decorate


def _methods_around(view: Any, is_deferred: bool) -> list[str]:
    """Return the names of the methods of a class-based view that are limited.

    That is ``dispatch``, unless calls may be deferred or the view authenticates in ``dispatch`` (REST framework).
    """
    if not (is_deferred or hasattr(view, "throttle_classes")):
        return ["dispatch"]
    return [name for name in view.http_method_names if name != "options" and hasattr(view, name)]


def throttled(function: F, answer: Callable[[tuple[object, ...], dict[str, object]], Any]) -> F:
    """Return a wrapper of the function that calls ``answer`` with the arguments.

    The wrapper has the function's globals, because Django Ninja resolves the names of annotations in them.
    """

    def called(*args: object, **kwargs: object) -> object:
        return answer(args, kwargs)

    async def acalled(*args: object, **kwargs: object) -> object:
        return await answer(args, kwargs)

    wrapper = acalled if _is_awaited(function) else called
    names = getattr(inspect.unwrap(function), "__globals__", None)
    if names is not None:
        wrapper = FunctionType(wrapper.__code__, names, closure=wrapper.__closure__)
    return wraps(function)(wrapper)  # type: ignore[return-value]


def is_throttle(layer: object) -> bool:
    """Return True for ``@throttle`` with its arguments, and for what it has made of a function."""
    answer = closure_of(layer).get("answer")
    return DEFERRAL in getattr(layer, "__dict__", ()) or getattr(answer, "__module__", "") == __name__


class _Call:
    """Call of a decorated function. ``subject`` is its request, as the view gets it, or None."""

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
        self._refused: tuple[Call, Decision] | None = None  #: refused call that waits for a slot, and its decision
        first = args[isinstance(args[0], View) :][:1] if args else ()  # after self, in a view's method
        self.subject: Any = first[0] if first and isinstance(django_request(first[0]), HttpRequest) else None

    def answer(self, awaits: bool) -> Any:
        """Decide the call, and make or refuse it. If ``awaits``, return an awaitable."""
        call_function = partial(self._function, *self._args, **self._kwargs)
        if self.subject is None:
            if self._later is not None:
                raise TypeError("defer_to is for views: a function that gets no request cannot answer with a 202")
            caller = self._caller_in_arguments()
            if awaits:
                return self._call_unless_refused(LoopIo(get_store()), caller, call_function)
            return run(self._call_unless_refused(BlockingIo(get_store()), caller, call_function))
        caller, answer_instead = RequestCaller(self.subject), None
        if self._later is not None:
            rest = self._args[isinstance(self._args[0], View) + 1 :]
            answer_instead = partial(self._answer_deferred, self._later, caller, rest)
        decide = self._adecide if awaits else self._decide
        answer = partial(_aview if awaits else _view, self.rule, self._function, call_function)
        coroutine = serve(django_request(self.subject), caller, decide, answer, answer_instead, awaits=awaits)
        return coroutine if awaits else run(coroutine)

    async def _call_unless_refused(
        self, io: StoreIo, known_caller: KeyedCaller | None, call_function: Callable[[], Any]
    ) -> object:
        """Make the call of a function that is no view. Raise Refused for a refused call."""
        call = await io.call(partial(self.call, known_caller), partial(self.acall, known_caller))
        decision = await io.call(partial(limiter.decide, call), partial(limiter.adecide, call))
        limiter.raise_if_refused(decision)
        try:
            return await run_measured(io, decision.ledger, call.scope, lambda: io.call(call_function, call_function))
        finally:
            await release_lease(io, decision.lease)

    async def _answer_deferred(
        self, later: Deferral, caller: RequestCaller, rest: tuple[object, ...], io: Io
    ) -> HttpResponse | None:
        if self._refused is not None:
            return await later.answer_waiting(io, caller, rest, self._kwargs, *self._refused)
        return await later.answer_deferred(io, caller, rest, self._kwargs)

    def _decide(self, request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
        call = self._with_report(self.call(caller))
        return note_decision(request, state, call, self._noted(call, limiter.decide(call)))

    async def _adecide(self, request: HttpRequest, caller: RequestCaller, state: RequestState) -> Decision:
        if self._later is not None:  # the deferral needs the rules
            await rulebook.acurrent()
        call = self._with_report(await self.acall(caller))
        return note_decision(request, state, call, self._noted(call, await limiter.adecide(call)))

    def _with_report(self, call: Call) -> Call:
        """Have a refusal reported, unless the call may wait for a slot instead."""
        call.retries_when_refused = self._later is not None and self._later.defers_to_slots()
        return call

    def _noted(self, call: Call, decision: Decision) -> Decision:
        """Return the decision, changed to allowed if the refused call may wait for a slot."""
        outcome = deciding_outcome(decision) if call.retries_when_refused and not decision.allowed else None
        if outcome is None or outcome.reason is not Reason.EXCEEDED:
            return decision
        self._refused = call, decision
        return decision._replace(allowed=True)

    def call(self, known_caller: KeyedCaller | None) -> Call:
        """Return the call to decide. Raise InvalidIdent for a call with neither request nor ident."""
        reraise = (SynchronousOnlyOperation,)  # see acall
        price = cost_of(self._cost, *self._args, options=self._kwargs, call_kind="call", reraise=reraise)
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
        """Return the call to decide, on an event loop. If a function of the site makes a query, it runs in a thread."""
        if isinstance(known_caller, RequestCaller) and self.subject is not None:
            await known_caller.aload()
        try:
            return self.call(known_caller)
        except SynchronousOnlyOperation:
            return await sync_to_async(self.call)(known_caller)

    def _ident_of_call(self, known_caller: KeyedCaller | None) -> tuple[str | None, bool, User | None]:
        """Return the ident, whether it is untrusted, and the user if the site's function returned a user.

        An ident is untrusted if nothing else identifies the caller.
        """
        if callable(self.ident):
            value = self._ident_value(self.ident, known_caller)
            user = value if is_user(value) else None
            return ident_from_value("ident", value, known_caller), known_caller is None and user is None, user
        if self.ident is None and self.subject is None:
            where = _request_expression(self._function, self._args, self._kwargs)
            raise InvalidIdent(_no_ident_message(self.rule, self._function, where))
        return (BY_KEY if self.ident is None else shortened(normalize_ident(self.ident))), False, None

    def _ident_value(self, function: Callable[..., object], known_caller: KeyedCaller | None) -> object:
        """Return what the site's function returns, or "" if the body of a request cannot be read.

        Then the call counts by its address, and the view meets the same error.
        """
        try:
            with KeptBody((*self._args, *self._kwargs.values())):
                return function(*self._args, **self._kwargs)
        except StreamReadError as error:
            raise InvalidIdent(f"{getattr(function, '__qualname__', function)} {error}") from error
        except Exception as error:
            if known_caller is None or not is_request_error(error):
                raise
            return ""

    def _caller_in_arguments(self) -> KeyedCaller | None:
        """Return the caller of the first request or consumer among the arguments, or None."""
        for argument in (*self._args, *self._kwargs.values()):
            if isinstance(django_request(argument), HttpRequest):
                return RequestCaller(django_request(argument))
            if isinstance(scope := getattr(argument, "scope", None), dict):
                return AsgiCaller(scope)
        return None


def _view(rule: str, function: object, call_function: Callable[[], object], request: HttpRequest) -> object:
    return _checked_answer(rule, function, call_function())


async def _aview(
    rule: str, function: object, call_function: Callable[[], Awaitable[object]], request: HttpRequest
) -> object:
    return _checked_answer(rule, function, await call_function())


def _checked_answer(rule: str, function: object, answer: T) -> T:
    """Return the answer of a view. Raise TypeError if it is no answer of a view, so the function is none.

    Otherwise the caller of the function would take a refusal, which is a response, for its value. Django Ninja makes a
    response from any value.
    """
    if (
        isinstance(answer, ANSWER_TYPES)
        or hasattr(answer, "status_code")
        or inspect.isawaitable(answer)
        or _is_in_ninja()
    ):
        return answer
    name = getattr(function, "__qualname__", type(function).__name__)
    raise TypeError(
        f"{name} returns {answer!r:.80}, so it is no view, and its caller would take a refusal (a response) for its "
        f'value: in place of @throttle ask in it, if not allows("{rule}", request), of django_throttle.limiter'
    )


def _is_in_ninja() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("ninja."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _request_expression(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> str | None:
    """Return the expression for the request of a call, such as "request" or "self.request". Return None without one."""
    with suppress(TypeError, ValueError):
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        for name, value in arguments.items():
            if isinstance(django_request(value), HttpRequest):
                return name
            if isinstance(django_request(getattr(value, "request", None)), HttpRequest):
                return f"{name}.request"
    return None


def _no_ident_message(rule: str, function: Callable[..., object], where: str | None) -> str:
    """Return the error message for a decorator that cannot identify the caller."""
    name = getattr(function, "__qualname__", type(function).__name__)
    fault = f'@throttle("{rule}") around {name}: a callable that gets no request'
    fault = f"{fault} needs ident=, a text or a function of its arguments"
    if where is None:
        return fault
    hint = f'ask in the function, if not allows("{rule}", {where}), of django_throttle.limiter'
    return f"{fault}. It has a request in {where}: {hint}, or write ident=lambda {_parameters(function)}: {where}.user"


def _parameters(function: Callable[..., object]) -> str:
    """Return the source of a function's parameters, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "*args, **kwargs"
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))[1:-1]


#: Usual names of a view's request parameter.
REQUEST_PARAMETER: Final = re.compile("_?re?q")


def _lacks_request(function: Callable[..., object]) -> str | None:
    """Return an expression for the request of a function that is no view, or "". Return None for a possible view."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    names = list(parameters)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return None
    is_method = names[:1] == ["self"]
    first = names[is_method:][:1]
    if (first and REQUEST_PARAMETER.match(first[0])) or getattr(function, "__name__", "") in View.http_method_names:
        return None
    if named := list(filter(REQUEST_PARAMETER.match, names)):
        return named[0]
    if is_method:
        return "self.request"
    return None if names else ""


def _may_get_request(function: Callable[..., object]) -> bool:
    """Return False if no parameter has a usual name or annotation of a request, and none is variadic."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return getattr(function, "__name__", "") in View.http_method_names or any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        or re.search("(?i)req|^r$", f"{parameter.name} {parameter.annotation}")
        for parameter in parameters
    )


def _request_of_method(function: Callable[..., object]) -> str | None:
    """Return the name of the first parameter after ``self`` if it is a usual name of a request, else None."""
    try:
        first, second = list(inspect.signature(function).parameters)[:2]
    except (TypeError, ValueError):
        return None
    return second if first == "self" and REQUEST_PARAMETER.match(second) else None


def is_view_method(function: Callable[..., object]) -> bool:
    """Return False for a method of a class that is neither a view nor a base of a view. Return True if in doubt.

    Doubtful are classes that cannot be found, and classes without subclasses whose method has a view method's name.
    """
    owner: object = sys.modules.get(getattr(function, "__module__", ""))
    for name in getattr(function, "__qualname__", "").split(".")[:-1]:
        owner = getattr(owner, name, None)
    if not isinstance(owner, type):
        return True
    may_become_base = function.__name__ in View.http_method_names and not type.__subclasses__(owner)
    classes = [owner]
    for kind in classes:
        classes += type.__subclasses__(kind)
    return may_become_base or any(issubclass(kind, View) for kind in classes)


def _is_awaited(function: object) -> bool:
    """Return True if the function returns an awaitable, as ``dispatch`` of an asynchronous class-based view does."""
    owner = getattr(getattr(function, "func", function), "__self__", None)
    return iscoroutinefunction(function) or is_async(function) or getattr(owner, "view_is_async", False)


def _check_decoration(function: object, cost: object, ident: object, is_deferred: bool) -> None:
    if isinstance(function, (classmethod, staticmethod, property)):
        raise TypeError(f"put @throttle below @{type(function).__name__}, next to the function")
    if any(callable(getattr(function, name, None)) for name in TASK_METHODS):
        raise TypeError("put @throttle below the decorator that makes a task (@shared_task), next to the function")
    if isinstance(function, type):
        _check_class(function, is_deferred)
    if not callable(function):
        raise TypeError(f"@throttle goes around a callable, not around {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a generator runs after the call: put @throttle around the function that iterates over it")
    if not callable(cost):
        check_cost(cost)
    if ident is not None and not callable(ident) and not (isinstance(ident, str) and ident):
        raise TypeError(f"ident is a text or a function of the call's arguments, not {ident!r}")
    if any(map(is_async, filter(callable, (cost, ident)))):
        raise TypeError("cost and ident are plain functions, not async ones")


def _check_class(kind: type, is_deferred: bool) -> None:
    if issubclass(kind, View) and is_deferred:
        if not _methods_around(kind, is_deferred):
            raise TypeError(f"put @throttle around the actions of {kind.__name__}: it has no methods such as get()")
    elif not issubclass(kind, View) or hasattr(kind, "throttle_classes"):
        raise TypeError(
            f"@throttle goes around functions, methods and Django's class-based views, not around {kind.__name__}: "
            "a view of REST framework needs throttle_classes = [RuleThrottle], a consumer the ThrottledConsumerMixin"
        )
