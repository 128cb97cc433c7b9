"""The table of docs/explanation/bounds.rst: each rule's stated bound beside the most that the search finds.

``python -m tests.published`` writes it anew; ``tests/docs/test_bounds.py`` fails when it is not current.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django_throttle.core import Rule
from django_throttle.core.descriptions import window
from tests.adversary import climb, measured_share
from tests.bounds import HOUR, most, share

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "bounds.rst"
BEGIN, END = ".. written by tests/published.py, begin", ".. written by tests/published.py, end"
TABLE = re.compile(f"(?<={re.escape(BEGIN)}\n\n).*?(?={re.escape(END)})", re.DOTALL)
HEAD = ("Rule", "In any", "At most", "Found", "Share", "Measured")
SECOND = 1_000_000
MINUTE = 60 * SECOND


class Row(NamedTuple):
    """A rule, the span that is looked at, and what is stated and found of both."""

    rule: Rule
    shape: str
    span: int

    @property
    def at_most(self) -> int:
        return most(self.rule, self.span)

    @property
    def share(self) -> Fraction:
        return share(self.rule)

    def __str__(self) -> str:
        return f"{self.rule.algorithm} {self.rule.rate} {self.shape} {in_words(self)}"


def row(algorithm: str, rate: str, shape: str = "", span: int | None = None, **options: Any) -> Row:
    rule = Rule("rule", rate, algorithm=algorithm, **options)
    return Row(rule, shape, span or rule.rate.window_us)


ROWS = (
    row("fixed_window", "100/min"),
    row("fixed_window", "1000/day", "UTC", timezone="UTC"),
    row("fixed_window", "1000/day", "Berlin", 23 * HOUR, timezone="Europe/Berlin"),
    row("fixed_window", "1000/day", "Berlin", 24 * HOUR, timezone="Europe/Berlin"),
    row("fixed_window", "1000/month", "", 28 * 24 * HOUR),
    row("fixed_window", "1000/month", "", 31 * 24 * HOUR),
    row("sliding_log", "100/min"),
    *(row("sliding_window", "100/min", f"n = {n}", resolution=n) for n in (1, 2, 4, 10)),
    *(
        row("sliding_window", "100/min", f"n = {n}", MINUTE * (n - 1) // n, resolution=n)
        for n in (2, 4, 10)  # one sub-window less than the window
    ),
    row("sliding_window", "100/min", "n = 10", 57 * SECOND, resolution=10),
    row("sliding_window", "5/s", "n = 1"),
    row("sliding_window", "1/min", "n = 1"),
    *(row("sliding_window", "100/min", f"strict, n = {n}", resolution=n, strict=True) for n in (1, 2, 4, 10)),
    row("gcra", "100/min", "B = 1", burst=1),
    row("gcra", "100/min", "B = 20", burst=20),
    row("gcra", "7/min", "B = 7"),
    row("token_bucket", "1000/h", "B = 50", burst=50),
    row("token_bucket", "3/min", "interval, B = 3", refill="interval"),
    row("token_bucket", "10/min", "interval, B = 25", refill="interval", burst=25),
    row("token_bucket", "10/min", "interval, B = 4", refill="interval", burst=4),
    row("leaky_bucket", "60/min", "B = 10", burst=10),
    row("leaky_bucket", "60/min", "queue, B = 10", burst=10, action="delay"),
    row("leaky_bucket", "60/min", "queue, at most 2.5 s", action="delay", max_delay=2.5),
)


@cache
def found(row: Row) -> int:
    return climb(row.rule, row.span)


@cache
def measured(row: Row) -> Fraction:
    return measured_share(row.rule)


def table() -> str:
    """All rows in reStructuredText."""
    lines = [HEAD, *map(cells, ROWS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    head, *body = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join([rule, head, rule, *body, rule, "", ""])


def cells(row: Row) -> tuple[str, ...]:
    rate = ", ".join(part for part in (str(row.rule.rate), row.shape) if part)
    return (
        f"``{row.rule.algorithm}`` {rate}",
        in_words(row),
        f"{row.at_most:,}",
        f"{found(row):,}",
        percent(row.share),
        percent(measured(row)),
    )


def in_words(row: Row) -> str:
    if row.span == row.rule.rate.window_us and not row.rule.rate.monthly:
        return window(row.rule.rate)
    for unit, size in (("days", 24 * HOUR), ("hours", HOUR), ("s", SECOND)):
        if row.span % size == 0:
            return f"{row.span // size} {unit}"
    raise AssertionError("a span is a whole number of seconds")


def percent(share: Fraction) -> str:
    return f"{float(share):.1%}".replace(".0%", "%").replace("%", " %")


def printed() -> str:
    """The table as the page has it."""
    match = TABLE.search(PAGE.read_text(encoding="utf-8"))
    return match[0] if match else ""


def write() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), text), encoding="utf-8")


if __name__ == "__main__":
    write()
    print(table(), end="")
