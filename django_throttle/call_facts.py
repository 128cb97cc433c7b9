"""The facts of a call that a door passes on to rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from django_throttle.core.commands import check_cost
from django_throttle.core.decide import NO_CHARGES, EarlierCharges
from django_throttle.core.rule import Rule


class Who(Protocol):
    """The caller, whatever the door.

    ``subject`` is the argument of a site's functions: the request or the ASGI scope, or None.
    """

    @property
    def subject(self) -> Any: ...

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key, such as "user:42"; None when the key does not apply to this caller."""

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""

    def lacks_address(self, key: str) -> bool:
        """Whether the key does not apply only because the caller's address is unknown."""


BY_KEY: Final = ""  # no ident is empty


@dataclass(frozen=True, slots=True)
class Facts:
    """A call: where it goes (scope), what it is (events), its caller and its cost.

    ``charged`` is what other doors have charged for this call. ``rule`` is the only rule to apply, or its name,
    whatever its scopes and events. ``only`` names the rules to apply of those that match; empty for all.
    ``method`` is a request's, in capitals, else "". ``early`` is True if a later door may know the caller better.
    ``size`` is in bytes. ``ident`` replaces those of the rules' keys; None if the call counts under nothing.
    ``is_claimed`` is True if a client may have made up that ident: overrides then only block.
    Raises InvalidCost unless ``cost`` is a whole number in range.
    """

    scope: str
    events: tuple[str, ...]
    who: Who
    cost: int = 1
    charged: EarlierCharges = NO_CHARGES
    rule: str | Rule | None = None
    method: str = ""
    early: bool = False
    size: int = 0
    ident: str | None = BY_KEY
    is_claimed: bool = False
    only: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if type(self.cost) is not int or self.cost < 0:  # on the hot path
            check_cost(self.cost)

    def due(self, rule: Rule, ident: str) -> Facts | None:
        """The call with the cost that this rule has not charged under this ident yet; None without one."""
        done = self.charged.costs.get((rule.name, ident))
        if done is None:
            return self
        if rule.is_concurrency or rule.unit == "bytes" or self.cost <= done:
            return None
        return replace(self, cost=self.cost - done)
