"""What would change: the rules of a file against those in the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django_throttle.core.rule import OPTIONS
from django_throttle.models import ThrottleRule

FIELDS = (*(option for option in OPTIONS if option != "rates"), "description")


@dataclass(frozen=True, slots=True)
class Diff:
    """Rows to add, pairs of the present row and the wanted one, rows to remove, and how many stay as they are."""

    added: tuple[ThrottleRule, ...]
    changed: tuple[tuple[ThrottleRule, ThrottleRule], ...]
    removed: tuple[ThrottleRule, ...]
    same: int

    def lines(self) -> Iterator[str]:
        """One line for each rule that changes, under it one for each option: old → new."""
        for row in self.added:
            yield f"+ {row.name}    {row.meaning}"
        for old, new in self.changed:
            yield f"~ {new.name}    {new.meaning}"
            yield from (f"    {field}: {_shown(old, field)} → {_shown(new, field)}" for field in _differing(old, new))
        for row in self.removed:
            yield f"- {row.name}    {row.meaning}"

    def summary(self) -> str:
        """The counts, in one line."""
        return (
            f"{len(self.added)} added, {len(self.changed)} changed, {len(self.removed)} removed, {self.same} unchanged"
        )

    def apply(self) -> None:
        """Write it; the caller holds the transaction."""
        for row in self.added:
            row.save(force_insert=True)
        for old, new in self.changed:
            new.pk = old.pk
            new.save(force_update=True)
        for row in self.removed:
            row.delete()


def compare(present: Mapping[str, ThrottleRule], wanted: Iterable[ThrottleRule], *, replace: bool) -> Diff:
    """The way from the present rows to the wanted ones; with ``replace``, rows that are not wanted go."""
    wanted = sorted(wanted, key=lambda row: row.name)
    both = [(present[row.name], row) for row in wanted if row.name in present]
    changed = tuple((old, new) for old, new in both if _differing(old, new))
    names = {row.name for row in wanted}
    return Diff(
        added=tuple(row for row in wanted if row.name not in present),
        changed=changed,
        removed=tuple(row for name, row in sorted(present.items()) if replace and name not in names),
        same=len(both) - len(changed),
    )


def _differing(old: ThrottleRule, new: ThrottleRule) -> list[str]:
    return [field for field in FIELDS if getattr(old, field) != getattr(new, field)]


def _shown(row: ThrottleRule, field: str) -> str:
    value: Any = getattr(row, field)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value not in (None, "") else "none"
