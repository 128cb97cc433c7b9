"""Recent refusals of callers, if an installed app such as ``django_throttle.console`` records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from django_throttle.stores import AnyStore

MAX_RECENT_REFUSALS: Final = 500


@dataclass(frozen=True, slots=True)
class Refusal:
    """A recorded call that a rule refused, or would have refused as a shadow rule."""

    at: datetime
    scope: str
    method: str
    event: str
    rule: str
    reason: str
    outcome: str  #: "refused" or "shadowed"
    tags: Mapping[str, str]  #: ident hash, or the ident, by the name of each rule
    weight: float  #: number of refusals that this sampled one stands for

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "at": self.at.isoformat()}


FindRefusals = Callable[[AnyStore, str, int, str], Sequence[Refusal]]
#: Function that returns the recent refusals of a caller, the latest first; None if none are recorded. Its arguments are
#: the store, an ident or the beginning of its hash, the maximal number of refusals, and a scope, which may be empty.
find_refusals: FindRefusals | None = None


def recent(store: AnyStore, ident: str, scope: str = "") -> Sequence[Refusal]:
    """Return the recent refusals of a caller, none if no app records them. Raise StoreError if the store fails."""
    return () if find_refusals is None else find_refusals(store, ident, MAX_RECENT_REFUSALS, scope)
