"""What a door knows of a call, before any rule is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from django_throttle.core.command import check_cost


class Who(Protocol):
    """Who is asking, however the call came in."""

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key, such as "user:42"; None when the key does not apply to this caller."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a call goes (scope), what it is (events), who makes it, and what it costs.

    Raises InvalidCost for a cost that is no whole number in range. ``charged`` names the rules that another
    door has charged for this call already. ``rule`` names the only one to apply, whatever its scopes and events.
    """

    scope: str
    events: tuple[str, ...]
    who: Who
    cost: int = 1
    charged: frozenset[str] = frozenset()
    rule: str | None = None

    def __post_init__(self) -> None:
        check_cost(self.cost)
