"""The printed table, and the same as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Row(NamedTuple):
    """A figure in ``unit``, and what is asked of it or of its ``ratio`` to what ``beside`` names."""

    section: str
    what: str
    value: float | None
    unit: str
    ratio: float | None = None
    beside: str = ""
    asked: float | None = None
    sense: Literal["≤", "≥"] = "≤"
    note: str = ""
    group: str = ""  # what ``make bench ARGS="--only …"`` calls it

    @property
    def judged(self) -> float | None:
        return self.value if self.ratio is None else self.ratio

    @property
    def verdict(self) -> str:
        if self.asked is None or self.judged is None:
            return ""
        met = self.judged <= self.asked if self.sense == "≤" else self.judged >= self.asked
        return "met" if met else "MISSED"


def show(rows: Sequence[Row]) -> str:
    lines: list[str] = []
    for at, row in enumerate(rows):
        if at == 0 or rows[at - 1].section != row.section:
            lines += ["", f"{row.section:<73} {'ratio':>9}  {'to':<22} {'asked':>11}"]
        value = "" if row.value is None else _number(row.value)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        asked = "" if row.asked is None else f"{row.sense} {_number(row.asked)}"
        figure = f"  {row.what:<56} {value:>11} {row.unit:<4} {ratio:>7}"
        lines.append(f"{figure}  {row.beside:<22} {asked:>11} {row.verdict} {row.note}".rstrip())
    return "\n".join(lines)


def write(rows: Sequence[Row], circumstances: dict[str, Any], path: Path) -> None:
    figures = list(map(as_json, rows))
    path.write_text(json.dumps({"circumstances": circumstances, "figures": figures}, indent=2, ensure_ascii=False))


def as_json(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "verdict": row.verdict}


def circumstances(server: dict[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "redis": server["redis_version"], "python": platform.python_version(), "processors": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()], "rounds": rounds,
    }  # fmt: skip


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.2f}" if number < 100 else f"{number:.1f}"
