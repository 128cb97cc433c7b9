"""Calls as entry points describe them to rules, and their costs and plans by functions of the site."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from reprlib import Repr
from typing import Final, Protocol, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle.core.decision import Lease
from django_throttle.core.key import PLAIN_TYPES
from django_throttle.core.ledger import Ledger
from django_throttle.core.options import is_dotted
from django_throttle.core.rate import UNAFFORDABLE_COST
from django_throttle.core.rule import Rule
from django_throttle.identity.request_body import KeptBody, is_request_error
from django_throttle.runtime import LogThrottle

T = TypeVar("T")


class Caller(Protocol):
    """Caller of a call, at any entry point."""

    @property
    def subject(self) -> object:
        """Argument for a site's functions: the request, the ASGI scope, or None."""

    def ident(self, key: str) -> str | None:
        """Return the ident under a rule's key, such as "user:42", or None if the key does not apply to the caller."""

    def is_(self, trait: str) -> bool:
        """Return True for a trait of the caller: "anonymous", "authenticated", "staff", "group:NAME", "tenant:NAME"."""

    def lacks_address(self, key: str) -> bool:
        """Return True if the key would apply, but for the caller's unknown address."""


BY_KEY: Final = ""  # no ident is empty


@dataclass  # not frozen: making a frozen instance takes three times as long, on each call
class Call:
    """Call to be decided."""

    scope: str
    events: tuple[str, ...]
    caller: Caller
    #: Units that the call uses.
    cost: int = 1
    #: Charges of other entry points for this call, and the leases that they hold for it.
    charged: Ledger | None = None
    leases: tuple[Lease, ...] = ()
    #: The only rule to apply, or its name. Its scopes and events do not matter.
    rule: str | Rule | None = None
    #: Method of a request in capitals, else "".
    method: str = ""
    #: True if the charges may be refunded later: a later entry point may refuse the call, or know the caller better.
    refundable: bool = False
    #: Size in bytes.
    size: int = 0
    #: Ident that replaces those of the rules' keys. None: the call is not limited.
    ident: str | None = BY_KEY
    #: True if a client may have made up the ident. Overrides then only block, audiences cover the call, and only the
    #: plan of anonymous callers applies.
    is_untrusted: bool = False
    #: Names of the rules to apply among those that match. Empty: all of them.
    only: frozenset[str] = frozenset()
    #: False if the entry point itself postpones a delayed call.
    honours_delay: bool = True
    #: True if the entry point retries refused calls itself. Only the last refusal is reported.
    retries_when_refused: bool = False

    def due(self, rule: Rule, ident: str) -> Call | None:
        """Return the call with the cost that this rule has not charged under this ident yet, or None if that is 0.

        A call that is larger than a limit keeps its whole cost, which its refusal reports.
        """
        charged_cost = None if self.charged is None else self.charged.costs.get((rule.name, ident))
        if charged_cost is None:
            return self
        if rule.holds_slots or rule.unit != "calls" or self.cost <= charged_cost:
            return None
        never_fits = any(self.cost * part.factor > part.params.limit for part in rule.parts)
        return self if never_fits else self.with_changes(cost=self.cost - charged_cost)

    def with_changes(self, **changes: object) -> Call:
        """Return a copy of the call with changed attributes."""
        changed = copy(self)
        vars(changed).update(changes)
        return changed


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


logger = logging.getLogger("django_throttle")

_log_throttle: Final = LogThrottle()
_NOTHING: Final[Mapping[str, object]] = {}


def cost_of(
    price: Callable[..., int] | int,
    *args: object,
    options: Mapping[str, object] = _NOTHING,
    call_kind: str = "message",
    name: str = "throttle_cost",
    reraise: tuple[type[Exception], ...] = (),
) -> int:
    """Return the cost by a number, or by a function of ``args`` and ``options``. Log an invalid cost, and return 1.

    A frame that the function cannot read must not close its socket, and a wrong function must not disable a rule. A
    cost larger than any limit stays larger. ``call_kind`` and ``name``, the name of a number, are for the log.
    Exceptions in ``reraise`` are raised. If the function cannot read the request's body, return 1 without a log line,
    because the view meets the same error. Raise the error if the view would not meet it.
    """
    body = KeptBody((*args, *options.values()))
    try:
        with body:
            cost: object = price(*args, **options) if callable(price) else price
    except reraise:
        raise
    except Exception as error:
        if is_request_error(error):
            if body.is_lost:
                raise
            return 1
        if _log_throttle.due(f"raises {_name(price, name)}"):
            line = "%s raised this exception: the %s counts 1; correct the function"
            logger.exception(line, _name(price, name), call_kind)
        return 1
    if type(cost) is int and cost >= 0:
        return min(cost, UNAFFORDABLE_COST)
    if inspect.iscoroutine(cost):
        cost.close()  # otherwise Python would warn, too
    if _log_throttle.due(f"answers {_name(price, name)}"):
        hint = ", and must not be async" if inspect.isawaitable(cost) else ""
        line = "%s says that a %s costs %.80r: it counts 1; the cost has to be a whole number, 0 or more%s"
        logger.error(line, _name(price, name), call_kind, cost, hint)
    return 1


def _name(price: object, name: str) -> str:
    if not callable(price):
        return name
    return f"{getattr(price, '__module__', '')}.{getattr(price, '__qualname__', type(price).__qualname__)}"


def with_plan(rule: Rule, caller: Caller) -> Rule:
    """Return the rule under the first of its plans that the caller has, or the rule itself.

    A function of the site is called once for all plans that name it, and only with a request or a scope.
    """
    names_by_path: dict[str, Collection[str]] = {}
    for plan, planned in rule.by_plan:
        path, _, name = plan.partition(":")
        if not is_dotted(path):
            if not plan or caller.is_(plan):
                return planned
            continue
        if path not in names_by_path:
            names_by_path[path] = () if caller.subject is None else plan_names(rule, path, caller.subject) or ()
        if name in names_by_path[path]:
            return planned
    return rule


_repr: Final = Repr()  # safe for objects whose own repr() fails
_repr.maxother = 80


def plan_names(rule: Rule, path: str, subject: object, *, logs: bool = True) -> Collection[str] | None:
    """Return the names of the rule's plans by this function that the caller has. A plan without a name is "".

    Return None if the function fails, and log that if ``logs``: a failure must neither fail the call nor lift a limit.
    Do not log it if the body of the request cannot be read.
    """
    names = [name for function, _, name in (plan.partition(":") for plan, _ in rule.by_plan) if function == path]
    body = KeptBody((subject,))
    try:
        with body:
            plan = import_string(path)(subject)
        plan = plan.value if isinstance(plan, Enum) else plan
        # A method that was not called would be true for every caller, and True is no plan's name.
        is_valid = plan is None or (isinstance(plan, (bool, *PLAIN_TYPES)) if any(names) else not callable(plan))
        if is_valid and (plan is not True or "" in names) and not inspect.isawaitable(plan):
            return [name for name in names if plan is not None and (str(plan) == name if name else plan)]
    except SynchronousOnlyOperation:  # on an event loop; matching is tried again in a thread
        raise
    except Exception as error:
        if is_request_error(error):
            if body.is_lost:
                raise
            return None
        if logs and _log_throttle.due(f"plan {path}"):
            line = "%s raised this exception: callers have no plan by it under rule %r; correct the function"
            logger.exception(line, path, rule.name)
        return None
    if inspect.iscoroutine(plan):
        plan.close()
    if logs and _log_throttle.due(f"plan {path}"):
        expected = f"a text such as {max(names)!r}, or None" if any(names) else "True or False"
        hint = ", and must not be async" if inspect.isawaitable(plan) else ""
        line = "%s returns %s: callers have no plan by it under rule %r; it has to return %s%s"
        # Only builtin objects are shown, because the repr() of a QuerySet would make a query.
        shown = _repr.repr(plan if type(plan).__module__ == "builtins" else type(plan))
        logger.error(line, path, shown, rule.name, expected, hint)
    return None
