"""Every fault and attack of the catalogue has a test that names it, and the page has what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import rows
from tests.faults.rows import RESULTS, ROOT, TABLE


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert list(rows.missing()) == []


def test_no_row_is_left_out() -> None:
    last = {"F": 60, "A": 63, "R": 20, "B": 12}
    assert list(rows.rows()) == [f"{kind}{number:02}" for kind, most in last.items() for number in range(1, most + 1)]


def test_the_page_has_the_table_of_the_last_run() -> None:
    assert TABLE.read_text(encoding="utf-8") == rows.table(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert "faults.inc" in (ROOT / "docs" / "reference" / "faults.rst").read_text(encoding="utf-8")


def test_a_gap_between_rows_and_tests_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without a test, one with a test and a reason for none, and a test of no row; in any folder of tests."""
    promises = tmp_path / "rows.toml"
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    monkeypatch.setattr(rows, "PROMISES", promises)
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "test_one.py").write_text('@pytest.mark.row("F01", "F03")\ndef test_it(): ...\n')
    (tmp_path / "tests" / "deep" / "test_two.py").write_text('PAIR = pytest.param(1, marks=pytest.mark.row("F01"))\n')

    def lacking(**known: str) -> list[str]:
        lines = (f'{name} = {{ fault = "it breaks", promise = "none", why = "{why}" }}' for name, why in known.items())
        promises.write_text("[Faults]\n" + "\n".join(lines))
        return list(rows.missing())

    assert lacking(F01="", F02="nobody can", F03="") == []
    assert lacking(F01="", F02="", F03="") == ["F02 has no test: it breaks"]
    assert lacking(F01="", F02="nobody can", F03="nobody can") == ["F03 has a test, and a reason for none: it breaks"]
    assert lacking(F01="") == ["F03 is no row, but tests/test_one.py names it"]
    (found,) = lacking(F03="")
    assert (
        found.startswith("F01 is no row, but ") and "tests/test_one.py" in found and "tests/deep/test_two.py" in found
    )
