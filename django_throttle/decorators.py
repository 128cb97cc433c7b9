"""The door for what has no class: views, and callables of any kind, under one rule by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from django_throttle import limiter
from django_throttle.core import Decision
from django_throttle.exceptions import InvalidIdent, Refused
from django_throttle.facts import Facts, Who
from django_throttle.identity import HttpWho
from django_throttle.requests import charged, keep, refusal

__all__ = ["throttle"]

F = TypeVar("F", bound=Callable[..., Any])
Ident = str | Callable[..., str | None] | None
Cost = int | Callable[..., int]


def throttle(rule: str, *, cost: Cost = 1, ident: Ident = None) -> Callable[[F], F]:
    """Put a view, or any callable, sync or async, under the rule of that name, whatever its scopes and events.

    A view's caller is found by the rule's key, and a refused one is answered with 429. Any other callable
    needs ``ident``, a text or a function of the call's arguments (None: not limited), and raises Refused.
    ``cost`` is a number or a function of the arguments. A rule that is switched off, or that nobody has made
    yet, limits nothing. For the methods of a class-based view use Django's method_decorator.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            request = _request(args)
            who = HttpWho(request) if request and ident is None else _Given(ident, args, kwargs)
            decision = limiter.decide(_facts(rule, who, cost, args, kwargs))
            _keep(request, decision)
            return function(*args, **kwargs) if decision.allowed else _refuse(request, decision)

        @wraps(function)
        async def acalled(*args: Any, **kwargs: Any) -> Any:
            request = _request(args)
            who = await HttpWho.aread(request) if request and ident is None else _Given(ident, args, kwargs)
            decision = await limiter.adecide(_facts(rule, who, cost, args, kwargs))
            _keep(request, decision)
            return await function(*args, **kwargs) if decision.allowed else _refuse(request, decision)

        return acalled if iscoroutinefunction(function) else called  # type: ignore[return-value]

    return decorate


class _Given:
    """The ident that the decorator was given; raises InvalidIdent when it was given none."""

    def __init__(self, ident: Ident, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if ident is None:
            raise InvalidIdent("a callable that gets no request needs ident=, a text or a function of its arguments")
        self._ident = ident(*args, **kwargs) if callable(ident) else ident

    def ident(self, key: str) -> str | None:
        return self._ident


def _facts(rule: str, who: Who, cost: Cost, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Facts:
    request = _request(args)
    price = cost(*args, **kwargs) if callable(cost) else cost
    return Facts(rule, (), who, price, charged(request) if request else frozenset(), rule=rule)


def _request(args: tuple[Any, ...]) -> HttpRequest | None:
    return args[0] if args and isinstance(args[0], HttpRequest) else None


def _keep(request: HttpRequest | None, decision: Decision) -> None:
    if request is not None:
        keep(request, decision)


def _refuse(request: HttpRequest | None, decision: Decision) -> Any:
    if request is None:
        raise Refused(decision)
    return refusal(decision)
