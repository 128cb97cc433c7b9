"""What was read of the rules, and of the overrides, at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from django_throttle.core import Override, Rule


@dataclass(frozen=True, slots=True)
class Found:
    """What one source holds: the rules that make sense, and for each other one its name and what is wrong.

    The database holds overrides too; ``unfit`` says of those that make no sense, by their number, what is wrong.
    ``rows`` are what all of it was made of, as the database's driver gives them.
    """

    rules: Mapping[str, Rule]
    faults: Mapping[str, str]
    overrides: tuple[Override, ...] = ()
    unfit: Mapping[int, str] = field(default_factory=dict)
    rows: Sequence[object] | None = None


NOTHING: Final = Found({}, {})


class Transaction:
    """The one that is open in a connection of the database."""

    def __init__(self, connection: Any) -> None:
        self._connection = ref(connection)

    def lasts(self) -> bool:
        """True until it is committed or rolled back; may be asked in any thread."""
        connection = self._connection()
        return connection is not None and bool(connection.in_atomic_block)


@dataclass(frozen=True, slots=True)
class Reading:
    """Both sources, read one after the other. ``failure`` is why the database could not be read.

    ``open_in`` is the transaction that it was read in, which may have edits that are never committed.
    """

    settings: Found
    database: Found = NOTHING
    failure: Exception | None = None
    open_in: Transaction | None = None

    @property
    def settled(self) -> bool:
        return self.open_in is None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple({**self.settings.rules, **self.database.rules}.values())

    @property
    def overrides(self) -> tuple[Override, ...]:
        return self.database.overrides

    @property
    def unfit(self) -> frozenset[tuple[int, str]]:
        """What is wrong with overrides that are skipped: number and message."""
        return frozenset(self.database.unfit.items())

    @property
    def faults(self) -> frozenset[tuple[str, str, str]]:
        """What is wrong with rules that are skipped: source, name and message."""
        sources = (("settings", self.settings), ("database", self.database))
        return frozenset((source, *fault) for source, found in sources for fault in found.faults.items())
