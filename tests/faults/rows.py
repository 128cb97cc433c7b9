"""``make faults``: the tests of each fault and attack, and the table of docs/reference/faults.rst.

``rows.toml`` says what is promised of faults and attacks, by README.md, and as bounds. A test names its rows,
``@pytest.mark.row("F07", "A12")``, and tells what it has measured by the fixture ``figure``.
``python -m tests.faults.rows [ROW…]`` runs the tests of these rows, or of all faults and attacks, keeps what came of it
in ``docs/faults.json``, and writes ``docs/faults.inc`` from that and ``rows.toml``.
"""

import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import django
import redis

from tests.servers import need_binary

ROOT = Path(__file__).parents[2]
PROMISES = Path(__file__).with_name("rows.toml")
RESULTS, TABLE = ROOT / "docs" / "faults.json", ROOT / "docs" / "faults.inc"
FAULTS = ("F", "A")  # what the page is about
HEAD = ("Row", "Fault or attack", "Promise", "Measured")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-m", "row", "-o", "junit_family=xunit1", "-o", "timeout=900")


class Row(NamedTuple):
    """A fault or an attack, what is promised of it, and why no test shows that, where none does."""

    name: str
    fault: str
    promise: str
    why: str = ""


def sections() -> dict[str, list[Row]]:
    found = tomllib.loads(PROMISES.read_text(encoding="utf-8"))
    return {title: [Row(name, **row) for name, row in rows.items()] for title, rows in found.items()}


def rows() -> dict[str, Row]:
    return {row.name: row for rows in sections().values() for row in rows}


def named() -> dict[str, set[str]]:
    """The rows that tests name, and the files in which they do; these are read, not imported."""
    found = defaultdict[str, set[str]](set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.row(" in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="row"), args=names):
                    for name in names:
                        found[ast.literal_eval(name)].add(str(path.relative_to(ROOT)))
    return dict(found)


def missing() -> Iterator[str]:
    known, tested = rows(), named()
    for row in known.values():
        if (row.name in tested) == bool(row.why):
            yield f"{row.name} has {'a test, and a reason for none' if row.why else 'no test'}: {row.fault}"
    for name, files in tested.items():
        if name not in known:
            yield f"{name} is no row, but {', '.join(files)} names it"


def run(wanted: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {"tests": 0, "skipped": 0, "failed": [], "figures": {}, "on": on()} for name in wanted
    }
    files = set[str]().union(*(files for name, files in named().items() if name in found))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        environment = {**os.environ, "LONG_OUTAGES": "1"}
        subprocess.run([*PYTEST, f"--junitxml={report}", *sorted(files)], cwd=ROOT, check=False, env=environment)
        for case in ElementTree.parse(report).iter("testcase"):
            told = [(one.get("name"), one.get("value", "")) for one in case.iter("property")]
            for name in {value for kind, value in told if kind == "row"} & set(found):
                add(found[name], case, [json.loads(value) for kind, value in told if kind == "figure"])
    return found


def on() -> str:
    server = subprocess.run([need_binary("redis-server"), "--version"], capture_output=True, text=True, check=True)
    versions = f"Python {platform.python_version()}, Django {django.__version__}, redis-py {redis.__version__}"
    name, version = server.stdout.split()[0], server.stdout.partition("v=")[2].partition(" ")[0]
    return f"{datetime.now(UTC).date()}: {versions}, {name} {version}, {os.cpu_count()} cores"


def add(row: dict[str, Any], case: ElementTree.Element, figures: list[Any]) -> None:
    row["tests"] += 1
    row["skipped"] += case.find("skipped") is not None
    if case.find("failure") is not None or case.find("error") is not None:
        row["failed"].append(f"{case.get('classname')}::{case.get('name')}")
    for label, value, unit in figures:
        low, high, _ = row["figures"].get(label, (value, value, unit))
        row["figures"][label] = [min(low, value), max(high, value), unit]


def table(results: dict[str, Any]) -> str:
    lines = [".. written by python -m tests.faults.rows", ""]
    for title, rows in sections().items():
        if not rows[0].name.startswith(FAULTS):
            continue
        lines += [title, "-" * len(title), "", ".. list-table::", "   :header-rows: 1", "   :widths: 6 24 40 30", ""]
        for cells in (HEAD, *((*row[:3], measured(row, results.get(row.name))) for row in rows)):
            lines += [f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])]
        lines.append("")
    runs = sorted({found["on"] for found in results.values()})
    return "\n".join([*lines, *(f"Measured {each}." for each in runs), ""])


def measured(row: Row, found: dict[str, Any] | None) -> str:
    if row.why or found is None:
        return row.why or "not run yet"
    said = [f"{label.rstrip(',')}: {between(*figure)}" for label, figure in found["figures"].items()]
    if not said and not found["failed"]:
        said.append("held")
    said.append(f"{found['tests']} test{'s' * (found['tests'] != 1)}")
    said += [f"{found['skipped']} of them skipped"] * bool(found["skipped"])
    return "; ".join([*said, *(f"**failed**: ``{test}``" for test in found["failed"])])


def between(low: float, high: float, unit: str) -> str:
    ends = dict.fromkeys(f"{end:,.0f}" if end >= 10 or end == int(end) else f"{end:.2g}" for end in (low, high))
    return f"{' to '.join(ends)} {unit}".rstrip()


def main(wanted: list[str]) -> int:
    """Run the tests of these rows, or of all; the exit code is 1 when one fails or a row has none."""
    known = rows()
    if unknown := [name for name in wanted if name not in known]:
        print(f"no such row: {', '.join(unknown)}", file=sys.stderr)
        return 2
    if lacking := list(missing()):
        print("\n".join(lacking), file=sys.stderr)
        return 1
    ran = run([name for name in wanted or known if name.startswith(FAULTS) and not known[name].why])
    results = {**json.loads(RESULTS.read_text(encoding="utf-8")), **ran}
    results = {name: results[name] for name in known if name in results}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(table(results), encoding="utf-8")
    bad = [name for name, row in ran.items() if row["failed"] or not row["tests"]]
    print(f"{len(ran)} rows, {sum(row['tests'] for row in ran.values())} tests; failed: {', '.join(bad) or 'none'}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
