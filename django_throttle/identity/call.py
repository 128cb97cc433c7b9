"""Calls as entry points describe them to rules."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from typing import Final, Protocol

from django_throttle.core.decision import Lease
from django_throttle.core.ledger import Ledger
from django_throttle.core.options import is_dotted
from django_throttle.core.rule import Rule
from django_throttle.identity.site_functions import plan_names


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
    cost: int = 1  #: units that the call uses
    charged: Ledger | None = None  #: charges of other entry points for this call, and the leases that they hold for it
    leases: tuple[Lease, ...] = ()
    rule: str | Rule | None = None  #: only rule to apply, or its name. Its scopes and events do not matter.
    method: str = ""  #: method of a request in capitals, else ""
    #: True if the charges may be refunded later: a later entry point may refuse the call, or know the caller better.
    refundable: bool = False
    size: int = 0  #: in bytes
    ident: str | None = BY_KEY  #: Ident that replaces those of the rules' keys. None: the call is not limited.
    #: True if a client may have made up the ident. Overrides then only block, audiences cover the call, and only the
    #: plan of anonymous callers applies.
    is_untrusted: bool = False
    only: frozenset[str] = frozenset()  #: Names of the rules to apply among those that match. Empty: all of them.
    honours_delay: bool = True  #: False if the entry point itself postpones a delayed call
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
