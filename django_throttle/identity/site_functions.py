"""Functions of the site that return costs, plans and idents. Their failures are logged, and lift no limit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import lru_cache, partial
from reprlib import Repr
from typing import Final, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle.core.key import PLAIN_TYPES
from django_throttle.core.rate import UNAFFORDABLE_COST
from django_throttle.core.rule import Rule
from django_throttle.exceptions import InvalidIdent
from django_throttle.identity.request_body import KeptBody, StreamReadError, is_request_error
from django_throttle.runtime import LogThrottle

T = TypeVar("T")

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

#: Value of a function of the site that fails: the call counts by its address.
FAILED: Final = object()
#: Types that a client may send as JSON in place of a text.
JSON_TYPES: Final = (list, dict, bool)
_NO_OPTIONS: Final[Mapping[str, object]] = {}
_repr: Final = Repr()  # safe for objects whose own repr() fails
_repr.maxother = 80


class InvalidResult(Exception):
    """Result of a function of the site with a wrong type or value."""

    def __init__(self, result: object, expected: str) -> None:
        if inspect.iscoroutine(result):
            result.close()  # otherwise Python would warn, too
        hint = " (it must not be async)" if inspect.isawaitable(result) else ""
        # Only builtin objects are shown, because the repr() of a QuerySet would make a query.
        shown = _repr.repr(result if type(result).__module__ == "builtins" else type(result))
        super().__init__(f"gives {shown}, not {expected}{hint}")


def try_function(
    function: Callable[..., object],
    *args: object,
    options: Mapping[str, object] = _NO_OPTIONS,
    check: Callable[[object], T],
    fallback: T,
    source: str,
    effect: str,
    reraise: tuple[type[Exception], ...] = (SynchronousOnlyOperation,),
    logs: bool = True,
) -> T:
    """Return the checked result of a function of the site. If it fails, log that if ``logs``, and return the fallback.

    ``check`` returns the result, or raises InvalidResult. ``source`` is the name of the function and ``effect`` how the
    call counts if it fails, both for the log. Exceptions in ``reraise`` are raised. The default is for event loops,
    where matching is tried again in a thread.

    If the function cannot read the request's body, there is no log line, because the view meets the same error.
    """
    try:
        with KeptBody((*args, *options.values())):
            result = function(*args, **options)
        return check(result)
    except reraise:
        raise
    except Exception as error:
        if not is_request_error(error) and logs and _log_throttle.try_acquire(source):
            if isinstance(error, (InvalidResult, StreamReadError)):
                logger.error("%s %s: %s; correct it", source, error, effect)
            else:
                logger.exception("%s raised this exception: %s; correct the function", source, effect)
        return fallback


def is_async(function: object) -> bool:
    """Return True for a coroutine function or an asynchronous generator function, also as a callable object."""
    method = getattr(function, "__call__", None)  # noqa: B004 - of an object whose class defines it
    return any(map(inspect.iscoroutinefunction, (function, method))) or inspect.isasyncgenfunction(function)


def call_by_path(path: str, subject: object) -> object:
    return import_string(path)(subject)


def own_function(value: T) -> T:
    """Return an attribute of an instance, but unbind a method without a parameter for the instance.

    ``throttle_cost = lambda request: …`` in a class becomes a method, which would be called with one argument too many.
    """
    function = getattr(value, "__func__", None)
    return value if function is None or _takes_instance(function) else function


@lru_cache(maxsize=512)
def _takes_instance(function: Callable[..., object]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    positional = [parameter for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    return len(required) > 1 or bool(positional and positional[0].name == "self")


def cost_of(
    price: Callable[..., int] | int,
    *args: object,
    options: Mapping[str, object] = _NO_OPTIONS,
    call_kind: str = "message",
    reraise: tuple[type[Exception], ...] = (),
) -> int:
    """Return the cost by a number, or by a function of ``args`` and ``options``. Log an invalid cost, and return 1.

    A frame that the function cannot read must not close its socket, and a wrong function must not disable a rule. A
    cost larger than any limit stays larger. ``call_kind`` is for the log.
    """
    if callable(price):
        function: Callable[..., object] = price
        name = f"{getattr(price, '__module__', '')}.{getattr(price, '__qualname__', type(price).__qualname__)}"
    else:
        function, args, options, name = lambda: price, (), _NO_OPTIONS, "throttle_cost"
    effect = f"the {call_kind} counts 1"
    return try_function(
        function, *args, options=options, check=_checked_cost, fallback=1, source=name, effect=effect, reraise=reraise
    )


def _checked_cost(cost: object) -> int:
    if type(cost) is int and cost >= 0:
        return min(cost, UNAFFORDABLE_COST)
    raise InvalidResult(cost, "a whole number, 0 or more")


def plan_names(rule: Rule, path: str, subject: object, *, logs: bool = True) -> Collection[str] | None:
    """Return the names of the rule's plans by this function that the caller has. A plan without a name is "".

    Return None if the function fails, and log that if ``logs``.
    """
    names = [name for function, _, name in (plan.partition(":") for plan, _ in rule.by_plan) if function == path]
    effect = f"callers have no plan by it under rule {rule.name!r}"
    check: Callable[[object], Collection[str] | None] = partial(_matching_plans, names)
    function = partial(call_by_path, path)
    return try_function(function, subject, check=check, fallback=None, source=path, effect=effect, logs=logs)


def _matching_plans(names: Collection[str], plan: object) -> Collection[str]:
    plan = plan.value if isinstance(plan, Enum) else plan
    # A method that was not called would be true for every caller, and True is no plan's name.
    is_valid = plan is None or (isinstance(plan, (bool, *PLAIN_TYPES)) if any(names) else not callable(plan))
    if not is_valid or (plan is True and "" not in names) or inspect.isawaitable(plan):
        raise InvalidResult(plan, f"a text such as {max(names)!r}, or None" if any(names) else "True or False")
    return [name for name in names if plan is not None and (str(plan) == name if name else plan)]


def site_value(
    source: str, function: Callable[[object], object], subject: object, *, takes_json: bool = False
) -> object:
    """Return the value by which a function of the site counts a call, or FAILED.

    The function fails if it raises, or if it returns a value that cannot be an ident. If ``takes_json``, there is no
    log line for values that a client may have sent in place of a text.
    """

    def check(value: object) -> object:
        return FAILED if takes_json and isinstance(value, JSON_TYPES) else checked_value(source, value)

    effect = "the call counts by its address"
    return try_function(function, subject, check=check, fallback=FAILED, source=source, effect=effect)


def checked_value(source: str, value: object) -> object:
    """Return the value. Raise InvalidIdent for other types: a text that differs in each call would evade limits."""
    if value is None or (isinstance(value, PLAIN_TYPES) and not isinstance(value, bool)):
        return value
    if inspect.iscoroutine(value):
        value.close()
    kind = type(value).__name__
    hint = "; it must not be async" if inspect.isawaitable(value) else ""
    raise InvalidIdent(f"{source} returns a text, a number or None, not {kind}{hint}")
