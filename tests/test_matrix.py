"""The version matrix has every version that is said to be supported, and the page has the table that was measured."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import matrix
from tests.matrix import ROWS, Missing

ROOT = Path(__file__).parents[1]
MEASURED = {
    "python": "3.12.1",
    "django": "6.1.2",
    "redis-py": "5.3.1",
    "database": "MariaDB 10.11.19",
    "server": "Valkey 9.1.2",
    "passed": 10,
    "skipped": 2,
    "failed": [],
    "alone": [],
    "seconds": 9,
    "commit": "abcdef0",
    "date": "2026-01-02",
}


def supported(name: str) -> set[str]:
    """The versions that the package's classifiers name."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return {found[1] for each in classifiers if (found := re.fullmatch(rf"{name} :: (\d+\.\d+)", each))}


def test_the_rows_are_those_of_tox() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "setup.cfg")
    assert sorted(ROWS) == sorted(tox["tox:tox"]["env_list"].split())


def test_every_supported_version_and_every_server_is_in_a_row() -> None:
    factors = [re.fullmatch(r"py(3)(\d+)-dj(\d)(\d)-redis(\d)", name) for name in ROWS]
    assert {f"{found[1]}.{found[2]}" for found in factors if found} == supported("Programming Language :: Python")
    assert {f"{found[3]}.{found[4]}" for found in factors if found} == supported("Framework :: Django")
    assert {found[5] for found in factors if found} == set("5678")
    assert {row.database for row in ROWS.values()} == {"sqlite", "postgresql", "mariadb"}
    assert {row.server for row in ROWS.values()} == {"Redis 6.2", "Redis 7.0", "Valkey 9"}


def test_the_page_has_the_table_of_the_last_runs() -> None:
    results = json.loads(matrix.RESULTS.read_text())
    assert set(results) <= set(ROWS)
    assert matrix.TABLE.read_text() == matrix.table(results)
    assert "versions.inc" in (ROOT / "docs" / "reference" / "compatibility.rst").read_text()


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, "MariaDB 10.11.19 Valkey 9.1.2 10 2 0 abcdef0, 2026-01-02"),
        ({"failed": ["tests.test_a::test_b"]}, "- ``py312-dj61-redis5``: ``tests.test_a::test_b`` failed"),
        ({"alone": ["a", "b"]}, "- ``py312-dj61-redis5``: 2 passed only when run again alone"),
        ({"mended": {"a": "abcdef1"}}, "- ``py312-dj61-redis5``: ``a`` failed, and passes since abcdef1"),
    ],
)
def test_a_result_is_shown_with_what_went_wrong(change: dict[str, Any], shown: str) -> None:
    assert shown in " ".join(matrix.table({"py312-dj61-redis5": {**MEASURED, **change}}).split())


def test_what_a_machine_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"Redis 7\.0"):
        matrix.server_of("Redis 7.0")
    found = {"database": "sqlite", "server": "Redis 7.0", "commit": "abcdef0", "date": "2026-01-02"}
    assert "missing: Redis 7.0" in matrix.table({"py312-dj52-redis6": {**found, "missing": "Redis 7.0"}})


def test_a_server_of_another_version_is_not_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "redis-server"
    other.write_text("#!/bin/sh\necho 'Redis server v=8.2.1 sha=00000000:0 malloc=libc bits=64 build=0'\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(Missing):
        matrix.server_of("Redis 7.0")
