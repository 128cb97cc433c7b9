"""The table of options in the docs is that of the code."""

from __future__ import annotations

from django_throttle.core import Rule
from docs.options import FILE, option_table


def test_the_table_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == option_table(Rule), "run python -m docs.options"
