"""A call as entry points describe it to rules, and its cost, a number or a function of the site."""

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
from django_throttle.identity.request_body import KeptBody, is_of_request
from django_throttle.runtime import LogThrottle

T = TypeVar("T")


class Caller(Protocol):
    """The caller, whatever the door.

    ``subject`` is the argument of a site's functions: the request or the ASGI scope, or None.
    """

    @property
    def subject(self) -> object: ...

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key, such as "user:42"; None when the key does not apply to this caller."""

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""

    def lacks_address(self, key: str) -> bool:
        """Whether the key does not apply only because the caller's address is unknown."""


BY_KEY: Final = ""  # no ident is empty


@dataclass  # not frozen, which takes three times as long to make, on each call
class Call:
    """A call: where it goes (scope), what it is (events), its caller and its cost.

    ``charged`` is what other entry points have charged for this call, and ``leases`` what they hold for it. ``rule`` is
    the only rule to apply, or its name, whatever its scopes and events. ``only`` names the rules to apply of those that
    match; empty for all. ``method`` is a request's, in capitals, else "". ``refundable`` is True if its charges may go
    back: a later entry point may refuse the call, or know the caller better.
    ``size`` is in bytes. ``ident`` replaces those of the rules' keys; None if the call counts under nothing.
    ``is_untrusted`` is True if a client may have made up that ident. Overrides then only block, audiences cover the
    call, and only the plan of callers who are not logged in holds.
    ``honours_delay`` is False if the entry point puts a delayed call off by itself.
    ``retries_when_refused`` is True if the entry point retries refused calls itself; only the last refusal is reported.
    """

    scope: str
    events: tuple[str, ...]
    caller: Caller
    cost: int = 1
    charged: Ledger | None = None
    leases: tuple[Lease, ...] = ()
    rule: str | Rule | None = None
    method: str = ""
    refundable: bool = False
    size: int = 0
    ident: str | None = BY_KEY
    is_untrusted: bool = False
    only: frozenset[str] = frozenset()
    honours_delay: bool = True
    retries_when_refused: bool = False

    def due(self, rule: Rule, ident: str) -> Call | None:
        """The call with what this rule has not charged under this ident yet; None without, whole if it never fits."""
        done = None if self.charged is None else self.charged.costs.get((rule.name, ident))
        if done is None:
            return self
        if rule.holds_slots or rule.unit != "calls" or self.cost <= done:
            return None
        never_fits = any(self.cost * part.factor > part.params.limit for part in rule.parts)  # which its refusal says
        return self if never_fits else self.but(cost=self.cost - done)

    def but(self, **changes: object) -> Call:
        """The same call with these changes."""
        found = copy(self)
        vars(found).update(changes)
        return found


def own_function(value: T) -> T:
    """Return what an instance has under a name; of a function without a place for the instance, the function itself.

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
    said: Callable[..., int] | int,
    *args: object,
    options: Mapping[str, object] = _NOTHING,
    what: str = "message",
    name: str = "throttle_cost",
    lets: tuple[type[Exception], ...] = (),
) -> int:
    """The cost, by a number or a function of ``args`` and ``options``; 1, with a log line, for anything else.

    A frame that the function cannot read must not close its socket, and a wrong function must not switch off a rule.
    A cost larger than any limit stays larger. ``what`` is what costs, and ``name`` the name of a number, both for the
    log; ``lets`` are exceptions that the caller handles. A body that cannot be read counts 1 without a line, and the
    view meets the same error; raise it where the view would not.
    """
    body = KeptBody((*args, *options.values()))
    try:
        with body:
            cost: object = said(*args, **options) if callable(said) else said
    except lets:
        raise
    except Exception as error:
        if is_of_request(error):
            if body.is_lost:
                raise
            return 1
        if _log_throttle.due(f"raises {_name(said, name)}"):
            logger.exception("%s raised this exception: the %s counts 1; correct the function", _name(said, name), what)
        return 1
    if type(cost) is int and cost >= 0:
        return min(cost, UNAFFORDABLE_COST)
    if inspect.iscoroutine(cost):
        cost.close()  # or Python would complain as well
    if _log_throttle.due(f"answers {_name(said, name)}"):
        hint = ", and must not be async" if inspect.isawaitable(cost) else ""
        line = "%s says that a %s costs %.80r: it counts 1; the cost has to be a whole number, 0 or more%s"
        logger.error(line, _name(said, name), what, cost, hint)
    return 1


def _name(said: object, name: str) -> str:
    if not callable(said):
        return name
    return f"{getattr(said, '__module__', '')}.{getattr(said, '__qualname__', type(said).__qualname__)}"


def with_plan(rule: Rule, caller: Caller) -> Rule:
    """The rule as the first plan has it that the caller has, or as it is without one; itself if it has no plans.

    A function of the site is called once, however many plans name it, and only where there is a request or a scope.
    """
    said: dict[str, Collection[str]] = {}
    for plan, planned in rule.by_plan:
        path, _, name = plan.partition(":")
        if not is_dotted(path):
            if not plan or caller.is_(plan):
                return planned
            continue
        if path not in said:
            said[path] = () if caller.subject is None else plans_said(rule, path, caller.subject) or ()
        if name in said[path]:
            return planned
    return rule


_shown: Final = Repr()  # of what fails when it is shown, too
_shown.maxother = 80


def plans_said(rule: Rule, path: str, subject: object, *, logs: bool = True) -> Collection[str] | None:
    """The names of the plans by this function that the caller has, "" of the one without a name.

    None, with a line where it ``logs``, if it fails: it must neither fail the call nor lift a limit. The same without a
    line if the body of the request cannot be read.
    """
    names = [name for where, _, name in (plan.partition(":") for plan, _ in rule.by_plan) if where == path]
    body = KeptBody((subject,))
    try:
        with body:
            found = import_string(path)(subject)
        found = found.value if isinstance(found, Enum) else found
        # A method that is not called is true for everybody, and True names no plan.
        is_answer = found is None or (isinstance(found, (bool, *PLAIN_TYPES)) if any(names) else not callable(found))
        if is_answer and (found is not True or "" in names) and not inspect.isawaitable(found):
            return [name for name in names if found is not None and (str(found) == name if name else found)]
    except SynchronousOnlyOperation:  # on an event loop; matching is tried again in a thread
        raise
    except Exception as error:
        if is_of_request(error):
            if body.is_lost:
                raise
            return None
        if logs and _log_throttle.due(f"plan {path}"):
            line = "%s raised this exception: callers have no plan by it under rule %r; correct the function"
            logger.exception(line, path, rule.name)
        return None
    if inspect.iscoroutine(found):
        found.close()
    if logs and _log_throttle.due(f"plan {path}"):
        expected = f"a text such as {max(names)!r}, or None" if any(names) else "True or False"
        hint = ", and must not be async" if inspect.isawaitable(found) else ""
        line = "%s returns %s: callers have no plan by it under rule %r; it has to return %s%s"
        # An object of another package is not shown: a QuerySet would ask the database.
        shown = _shown.repr(found if type(found).__module__ == "builtins" else type(found))
        logger.error(line, path, shown, rule.name, expected, hint)
    return None
