"""What a door knows of a call, before rules are matched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from django_throttle.core.commands import check_cost
from django_throttle.core.flow import NOTHING, Charged
from django_throttle.core.rule import Rule


class Who(Protocol):
    """Who is asking, however the call came in.

    ``subject`` is what a site's own functions are called with: the request or the ASGI scope; None without either.
    """

    @property
    def subject(self) -> Any: ...

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key, such as "user:42"; None when the key does not apply to this caller."""

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""

    def lacks_address(self, key: str) -> bool:
        """True when the key does not apply for no other reason than that nobody knows the caller's address."""


BY_KEY: Final = ""  # no ident is empty


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a call goes (scope), what it is (events), who makes it, and what it costs.

    Raises InvalidCost for a cost that is no whole number in range. ``charged`` is what other doors have charged for
    this call already. ``rule`` names the only one to apply, or is it, whatever its scopes and events. ``only`` are the
    names of those to apply, of all that match; every one where it is empty. ``method`` is a
    request's, in capitals; "" for whatever has none. ``early`` is True where a later door may know better who calls.
    ``size`` is how many bytes it carries. ``ident`` is what it counts under, unless each rule's key finds that; None
    where it counts under nothing. ``is_claimed`` is True where nothing but that ident says who makes it, and a client
    may have made it up: what an override grants is not granted then, what one blocks is blocked.
    """

    scope: str
    events: tuple[str, ...]
    who: Who
    cost: int = 1
    charged: Charged = NOTHING
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
        """The call with the cost that this rule was not yet charged under this ident; None when there is none."""
        done = self.charged.costs.get((rule.name, ident))
        if done is None:
            return self
        if rule.is_concurrency or rule.unit == "bytes" or self.cost <= done:
            return None
        return replace(self, cost=self.cost - done)
