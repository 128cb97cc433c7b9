"""The code that a page of the documentation shows, and the tables that programs write into pages."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

BLOCK = re.compile(r"^\.\. code-block:: python\n(?: {3}:.*\n)*\n((?:(?: {3}.*)?\n)+)", re.MULTILINE)
SEEN = re.compile(r"^What the client sees\n-+\n(.*?)(?=^[^\n]+\n-+\n|\Z)", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"^\.\. code-block:: (?:http|json|text)\n\n((?:(?: {3}.*)?\n)+)", re.MULTILINE)
DOCS = Path(__file__).parents[1] / "docs"


def block(page: str, text: str) -> str:
    (found,) = (code for code in shown(page) if text in code)
    return found


def shown(page: str) -> list[str]:
    (path,) = DOCS.rglob(f"{page}.rst")
    text = path.read_text(encoding="utf-8")
    return list(map(dedent, BLOCK.findall(text)))


def seen(page: str) -> list[str]:
    """The answers and frames that a page shows under "What the client sees"."""
    (path,) = DOCS.rglob(f"{page}.rst")
    part = SEEN.search(path.read_text(encoding="utf-8"))
    return list(map(dedent, ANSWER.findall(part[1]))) if part else []


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run code after the settings of a site, in which these names are there already; returns all of its names."""
    settings: dict[str, Any] = {"DJANGO_THROTTLE": {"RULES": {}}, "INSTALLED_APPS": [], "MIDDLEWARE": []}
    found: dict[str, Any] = {"__name__": "shown", **settings, **names}
    exec(code, found)
    return found


def simple_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a simple table of reStructuredText; its first line is the head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    head, *body = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join([rule, head, rule, *body, rule, ""])
