"""The page of checks has every number that a check can print, and the ranges that it checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_throttle.checks import settings as checked

ROOT = Path(__file__).parents[2]
NUMBER = r"\b[EWI]0\d\d\b"
PAGE = (ROOT / "docs" / "reference" / "checks.rst").read_text(encoding="utf-8")
ROWS = dict(re.findall(rf"^   \* - ``({NUMBER})``\n((?:     .*\n)+)", PAGE, re.MULTILINE))


def test_every_number_is_there_once() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "django_throttle" / "checks").glob("*.py"))
    assert sorted(re.findall(rf"^   \* - ``({NUMBER})``", PAGE, re.MULTILINE)) == sorted(set(re.findall(NUMBER, code)))


@pytest.mark.parametrize("name", checked.VALUES)
def test_a_value_out_of_range_has_the_range_that_is_checked(name: str) -> None:
    number, (wanted, _) = checked.VALUES[name]
    told = ROWS[number].replace(",", "")
    assert f"``{name}``" in told
    if found := re.search(r"from (\S+) to (\S+)$", wanted):
        assert re.search(rf"\b{re.escape(found[1])} to {re.escape(found[2])}\b", told)
