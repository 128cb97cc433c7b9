"""The door for what has no class: views, and callables of any kind, under one rule by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from django_throttle import limiter
from django_throttle.exceptions import InvalidIdent, Refused
from django_throttle.facts import Facts, Who
from django_throttle.http.body import meter, size_of
from django_throttle.http.ending import aabandon, abandon, afinish, finish
from django_throttle.http.refusal import refusal
from django_throttle.http.visit import attend, charged, keep, method_of, plain
from django_throttle.identity import HttpWho, is_async

__all__ = ["throttle"]

F = TypeVar("F", bound=Callable[..., Any])
Ident = str | Callable[..., str | None] | None
Cost = int | Callable[..., int]


def throttle(rule: str, *, cost: Cost = 1, ident: Ident = None) -> Callable[[F], F]:
    """Put a view, or any callable, sync or async, under the rule of that name, whatever its scopes and events.

    A view's caller is found by the rule's key, and a refused one is answered with 429. Any other callable
    needs ``ident``, a text or a function of the call's arguments (None: not limited), and raises Refused.
    ``cost`` is a number or a function of the arguments. A rule that is switched off, or that nobody has made
    yet, limits nothing. Around a class of Django's views it covers all its methods. What a concurrency rule
    holds goes back when the callable returns, or when the response has been sent. Raises TypeError around
    what it can not limit, and says what to do instead.
    """

    def decorate(function: F) -> F:
        _check(function, cost, ident)
        if isinstance(function, type):
            return method_decorator(throttle(rule, cost=cost, ident=ident), name="dispatch")(function)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            call = _Call(rule, cost, ident, function, args, kwargs)
            return _run(call) if call.subject is None else _serve(call, plain(call.subject))

        @wraps(function)
        async def acalled(*args: Any, **kwargs: Any) -> Any:
            call = _Call(rule, cost, ident, function, args, kwargs)
            return await (_arun(call) if call.subject is None else _aserve(call, plain(call.subject)))

        return acalled if _is_awaited(function) else called  # type: ignore[return-value]

    return decorate


class _Call:
    """One call of what is decorated; ``subject`` is the request that it is about, as the view gets it, or None."""

    def __init__(self, rule: str, cost: Cost, ident: Ident, function: Callable[..., Any], args: Any, kwargs: Any):
        self.rule, self.ident = rule, ident
        self._function, self._args, self._kwargs = function, args, kwargs
        self._cost = cost
        found = args[isinstance(args[0], View) :][:1] if args else ()  # after self, in a view's method
        self.subject: Any = found[0] if found and isinstance(plain(found[0]), HttpRequest) else None

    def go(self) -> Any:
        return self._function(*self._args, **self._kwargs)

    def who(self, caller: HttpWho | None = None) -> Who:
        """Whoever the decorator says, else the caller; raises InvalidIdent when there is neither."""
        if self.ident is None and caller is not None:
            return caller
        if self.ident is None:
            raise InvalidIdent("a callable that gets no request needs ident=, a text or a function of its arguments")
        return _Given(self.ident(*self._args, **self._kwargs) if callable(self.ident) else self.ident, caller)

    def facts(self, who: Who) -> Facts:
        price = self._cost(*self._args, **self._kwargs) if callable(self._cost) else self._cost
        if self.subject is None:
            return Facts(self.rule, (), who, price, rule=self.rule)
        request = plain(self.subject)
        done, method, size = charged(request), method_of(request), size_of(request)
        return Facts(self.rule, (), who, price, done, rule=self.rule, method=method, early=True, size=size)


@dataclass(frozen=True, slots=True)
class _Given:
    """Counted under the ident that the decorator was given; all else is as the caller of the request has it."""

    given: str | None
    caller: HttpWho | None

    @property
    def subject(self) -> Any:
        return None if self.caller is None else self.caller.subject

    def ident(self, key: str) -> str | None:
        return self.given

    def is_(self, trait: str) -> bool:
        return trait == "anonymous" if self.caller is None else self.caller.is_(trait)

    def lacks_address(self, key: str) -> bool:
        return False


def _run(call: _Call) -> Any:
    decision = limiter.decide(call.facts(call.who()))
    if not decision.allowed:
        raise Refused(decision)
    try:
        return call.go()
    finally:
        limiter.release(decision.lease)


async def _arun(call: _Call) -> Any:
    decision = await limiter.adecide(call.facts(call.who()))
    if not decision.allowed:
        raise Refused(decision)
    try:
        return await call.go()
    finally:
        await limiter.arelease(decision.lease)


def _serve(call: _Call, request: HttpRequest) -> Any:
    who = call.who(HttpWho(call.subject))
    attending = attend(request, who)
    try:
        facts = call.facts(who)
        decision = limiter.decide(facts)
        keep(request, decision, facts.cost)
        meter(request, decision, facts)
        response = call.go() if decision.allowed else refusal(request, decision)
    except Refused as error:
        if not attending:
            raise
        response = _refused(request, error)
    except BaseException as error:
        if attending:
            abandon(request, error)
        raise
    return finish(request, response) if attending else response


async def _aserve(call: _Call, request: HttpRequest) -> Any:
    who = call.who(await HttpWho.aread(call.subject))
    attending = attend(request, who)
    try:
        facts = call.facts(who)
        decision = await limiter.adecide(facts)
        keep(request, decision, facts.cost)
        meter(request, decision, facts)
        response = await call.go() if decision.allowed else refusal(request, decision)
    except Refused as error:
        if not attending:
            raise
        response = _refused(request, error)
    except BaseException as error:
        if attending:
            await aabandon(request, error)
        raise
    return await afinish(request, response) if attending else response


def _refused(request: HttpRequest, error: Refused) -> HttpResponse:
    """What a view has called was refused, and it let that pass: so is the request."""
    keep(request, error.decision)
    return refusal(request, error.decision)


def _is_awaited(function: Any) -> bool:
    """Also of the methods by which an asynchronous class-based view is entered: they return what is to be awaited."""
    owner = getattr(getattr(function, "func", function), "__self__", None)
    return iscoroutinefunction(function) or is_async(function) or getattr(owner, "view_is_async", False)


def _check(function: Any, *callables: Any) -> None:
    if isinstance(function, (classmethod, staticmethod, property)):
        raise TypeError(f"put @throttle below @{type(function).__name__}, next to the function")
    if isinstance(function, type) and (not issubclass(function, View) or hasattr(function, "throttle_classes")):
        raise TypeError(
            f"@throttle goes around functions, methods and Django's class-based views, not around {function.__name__}: "
            "a view of REST framework has throttle_classes = [RuleThrottle], a consumer the ThrottledConsumerMixin"
        )
    if not callable(function):
        raise TypeError(f"@throttle goes around something to call, not around {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a generator runs after the call, piece by piece: put @throttle around what iterates over it")
    if any(map(is_async, filter(callable, callables))):
        raise TypeError("cost and ident are plain functions, not async ones")
