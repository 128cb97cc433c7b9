"""Compares what a command answers with what a page shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The numbers that are others each time: how long until something is there again.
WAIT = re.compile(r"(;t=|Retry-After: |in |\"retry_after\": )[\d.]+(?: (?:second|minute|hour|day)s?\b)?", re.IGNORECASE)
# What a site's own secret is in, or the clock of the wall.
OTHERS = re.compile(r'(?<="reference": ")[0-9a-f]{8}|(?<="starts_at": ")[^"]+|(?<=Location: /later/)\S+')
STATUS = re.compile(r"^(HTTP/[\d.]+ \d+).*")  # without the reason, which is the server's affair
HEADER = re.compile(r"^[A-Za-z-]+: ")


def plain(line: str) -> str:
    """A line without what differs from run to run; names of header fields in lower case, as some servers send them."""
    line = STATUS.sub(r"\1", WAIT.sub(r"\1N", OTHERS.sub("N", line.rstrip())))
    name, separator, value = line.partition(": ")
    return f"{name.lower()}: {value}" if separator and HEADER.match(line) else line


def assert_shown(shown: Iterable[str], printed: str) -> None:
    """Every line that the page shows is in what was printed; header fields in any order, other lines in theirs."""
    lines = [plain(line) for line in printed.splitlines()]
    wanted = [plain(line) for line in shown if line.strip()]
    fields = [line for line in wanted if HEADER.match(line)]
    assert set(fields) <= set(lines), f"{set(fields) - set(lines)} not in:\n{printed}"
    rest = iter(line for line in lines if not HEADER.match(line))
    for line in wanted:
        if not HEADER.match(line):
            assert line in rest, f"{line!r}, as shown, is not (in its place) in:\n{printed}"
