"""The code that a page of the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

BLOCK = re.compile(r"^\.\. code-block:: python\n(?: {3}:.*\n)*\n((?:(?: {3}.*)?\n)+)", re.MULTILINE)
DOCS = Path(__file__).parents[1] / "docs"


def block(page: str, text: str) -> str:
    """The one block of Python on a page that has this text in it."""
    (found,) = (code for code in shown(page) if text in code)
    return found


def shown(page: str) -> list[str]:
    """The blocks of Python on a page of the documentation."""
    (path,) = DOCS.rglob(f"{page}.rst")
    text = path.read_text(encoding="utf-8")
    return list(map(dedent, BLOCK.findall(text)))
