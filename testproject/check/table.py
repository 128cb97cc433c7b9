"""The table that the check prints: one row a step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

SLACK = 2.0 if os.environ.get("CI") else 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One step: what was expected, what was measured. ``ok`` None is a step that could not run."""

    step: str
    expected: str
    measured: str
    ok: bool | None

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "NOT OK", None: "skipped"}[self.ok]


def seconds(limit: float) -> float:
    """A time bound, twice as wide on a CI machine."""
    return limit * SLACK


class Table:
    """Collects rows, and says each as it comes in."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Take the rows of a part; a long part shows that it is alive."""
        for row in rows:
            self.rows.append(row)
            print(f"  {row.verdict:<7}  {row.step}", file=sys.stderr, flush=True)

    @property
    def passed(self) -> bool:
        return all(row.ok is not False for row in self.rows)

    def __str__(self) -> str:
        cells: list[tuple[str, ...]] = [("step", "expected", "measured", "")]
        cells += [(row.step, row.expected, row.measured, row.verdict) for row in self.rows]
        widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
        cells.insert(1, tuple("-" * width for width in widths))
        pairs = (zip(line, widths, strict=True) for line in cells)
        return "\n".join("  ".join(text.ljust(width) for text, width in pair).rstrip() for pair in pairs)
