"""The glossary: the words of each of its terms stand in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "glossary.rst").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "django_throttle").rglob("*.py")).lower()
TERMS = re.findall(r"^   (\w[\w -]*)$", PAGE, re.MULTILINE)


def test_it_has_each_term_once() -> None:
    assert len(TERMS) > 50
    assert len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_stands_in_the_code(term: str) -> None:
    for word in re.split("[ -]", term):
        assert re.search(rf"\b_?{word}", CODE), word


def test_terms_that_are_referred_to_are_there() -> None:
    assert set(re.findall(r":term:`(\w+)`", PAGE)) <= set(TERMS)
