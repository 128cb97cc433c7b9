"""The page on scale: its table and picture are of the figures that the benchmark has kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs import scale
from tests.lab.benchmarks.__main__ import GROWTH


def test_the_table_and_the_picture_are_of_the_kept_figures() -> None:
    kept = scale.figures()
    assert set(kept) == set(scale.GROUPS) == set(GROWTH)
    assert scale.TABLE.read_text(encoding="utf-8") == scale.table(kept), "run python -m docs.scale"
    assert scale.digest(kept) in scale.PICTURE.read_text(encoding="utf-8"), "run python -m docs.scale"
    page = (scale.FILE.parent / "explanation" / "scale.rst").read_text(encoding="utf-8")
    assert f".. include:: /{scale.TABLE.name}" in page and f"pictures/{scale.PICTURE.name}" in page


def test_they_were_measured_in_full() -> None:
    kept = scale.figures()
    assert scale.figure(kept, "identities", "1,000,000 identities: memory") > 0
    assert kept["crowd"]["figures"][0]["section"].startswith("100,000 open sockets")
    assert kept["flood"]["figures"][-1]["what"] == "together"


def test_one_group_can_be_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = scale.figures()
    for name in ("FILE", "TABLE", "PICTURE"):
        monkeypatch.setattr(scale, name, tmp_path / getattr(scale, name).name)
    scale.FILE.write_text(json.dumps(kept), encoding="utf-8")
    rows = [dict(row, value=7.0) for row in kept["masters"]["figures"]]
    scale.save("masters", {"rounds": 1}, rows)
    scale.main()
    assert scale.figures() == {**kept, "masters": {"circumstances": {"rounds": 1}, "figures": rows}}
    assert "7.0 µs each" in scale.TABLE.read_text(encoding="utf-8")
    assert scale.digest(scale.figures()) in scale.PICTURE.read_text(encoding="utf-8")


def test_a_page_is_written_once_every_group_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "FILE", tmp_path / "scale.json")
    scale.save("flood", {}, [])
    scale.main()
    assert capsys.readouterr().err == "not measured yet: identities, rulebook, crowd, masters\n"
