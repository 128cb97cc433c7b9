"""The table of docs/reference/compatibility.rst about these suites; ``python -m tests.lab.foreign`` writes it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.lab.foreign.runs import Comparison
from tests.lab.foreign.suites import SUITES
from tests.outside.environments import ROOT

PAGE = ROOT / "docs" / "suites.inc"
BEGIN = ".. written by python -m tests.lab.foreign\n\n.. list-table::\n   :header-rows: 1\n   :widths: 26 9 33 8 8 8 8"
HEAD = ("Suite", "Version", "How we stand in its way", "Tests", "Decisions", "Scripts", "Changed")

Row = tuple[str, ...]


def row(found: Comparison) -> Row:
    """What is to be said of a suite: its tests, our decisions, the scripts that Redis ran for them, what changed."""
    suite, made = found.suite, sum(found.throttled.decisions.values())
    numbers = (len(found.throttled.outcomes), made, found.throttled.scripts, len(found.changed))
    return (suite.title, suite.version, suite.way, *(f"{number:,}" for number in numbers))


def table(rows: Iterable[Row]) -> str:
    """Rows in reStructuredText."""
    lines = [f"   {' ' if number else '*'} - {cell}" for each in (HEAD, *rows) for number, cell in enumerate(each)]
    return "\n".join([BEGIN, "", *lines, ""])


def write(found: Iterable[Comparison]) -> None:
    """Replace the rows of these suites; those of others stay."""
    rows = {each[0]: each for each in (*rows_of(written()), *map(row, found))}
    ordered = [rows[suite.title] for suite in SUITES.values() if suite.title in rows]
    apart = [f"* {suite.title}, ``{name}``: {why}." for suite in SUITES.values() for name, why in suite.apart.items()]
    text = [table(ordered), "Left out, as they cannot apply:", "", *apart, ""]
    PAGE.write_text("\n".join(text), encoding="utf-8")


def written() -> str:
    """The table as it was written last."""
    return PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def rows_of(text: str) -> list[Row]:
    """The rows of a table."""
    cells = [line[7:] for line in text.splitlines() if line.startswith(("   * - ", "     - "))]
    return [tuple(cells[at : at + len(HEAD)]) for at in range(len(HEAD), len(cells), len(HEAD))]
