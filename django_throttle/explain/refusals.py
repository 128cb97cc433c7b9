"""What callers were refused lately, if an installed app records it: ``django_throttle.console`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from django_throttle.stores import AnyStore

MAX_LOOKED_AT: Final = 500


@dataclass(frozen=True, slots=True)
class Refusal:
    """A recorded call that a rule refused, or would have refused.

    ``outcome`` is "refused" or "shadowed". ``tags`` has the hash of the ident, or the ident, by the name of each rule.
    """

    at: datetime
    scope: str
    method: str
    event: str
    rule: str
    reason: str
    outcome: str
    tags: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "at": self.at.isoformat()}


FindRefusals = Callable[[AnyStore, str, int, str], Sequence[Refusal]]
#: Return what a caller was refused lately, the latest first; None where nothing is recorded. Its arguments are the
#: store, an ident or the first characters of its hash, how many are listed, and a scope, which may be empty.
find_refusals: FindRefusals | None = None


def recent(store: AnyStore, ident: str, scope: str = "") -> Sequence[Refusal]:
    """Return what a caller was refused lately; empty if no app records it. Raise StoreError."""
    return () if find_refusals is None else find_refusals(store, ident, MAX_LOOKED_AT, scope)
