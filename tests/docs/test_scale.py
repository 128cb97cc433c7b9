"""The page on scale: its table and picture are of the figures that the benchmark has kept."""

from __future__ import annotations

from docs import scale
from tests.lab.benchmarks.__main__ import GROWTH


def test_the_table_and_the_picture_are_of_the_kept_figures() -> None:
    kept = scale.figures()
    assert set(kept) == set(scale.GROUPS) == set(GROWTH)
    assert scale.TABLE.read_text(encoding="utf-8") == scale.table(kept), "run python -m docs.scale"
    assert scale.digest(kept) in scale.PICTURE.read_text(encoding="utf-8"), "run python -m docs.scale"
    page = (scale.FILE.parent / "explanation" / "scale.rst").read_text(encoding="utf-8")
    assert f".. include:: /{scale.TABLE.name}" in page and f"pictures/{scale.PICTURE.name}" in page
