"""Every fault and attack of the catalogue has a test that names it, and the page has what was measured."""

import json

from tests.faults import rows
from tests.faults.rows import RESULTS, ROOT, TABLE


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    assert list(rows.missing()) == []


def test_the_page_has_the_table_of_the_last_run() -> None:
    assert TABLE.read_text(encoding="utf-8") == rows.table(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert "faults.inc" in (ROOT / "docs" / "reference" / "faults.rst").read_text(encoding="utf-8")
