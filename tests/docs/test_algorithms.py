"""The pictures and the table of the page about algorithms are what the algorithms do."""

from __future__ import annotations

from docs import algorithms
from tests.pages import DOCS


def test_pictures_and_table_are_of_what_is_played() -> None:
    played = algorithms.play()
    assert algorithms.TABLE.read_text(encoding="utf-8") == algorithms.table(played), "run python -m docs.algorithms"
    page = (DOCS / "explanation" / "algorithms.rst").read_text(encoding="utf-8")
    for name, one in played.items():
        picture = algorithms.PICTURES / f"{name}.svg"
        assert algorithms.digest(one) in picture.read_text(encoding="utf-8"), "run python -m docs.algorithms"
        assert f".. image:: /pictures/{name}.svg" in page
