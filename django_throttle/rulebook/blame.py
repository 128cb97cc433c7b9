"""Under which of a rule's fields an operator should read what is wrong with it."""

from __future__ import annotations

import re
from typing import Any, Final

from django_throttle.core.rule import OPTIONS

# How those sentences of the core begin that name another option before the one that is to be mended.
_BEGINNINGS: Final = {
    "a concurrency rule takes limit=": "rate",
    "the event connection": "events",
    "a calendar window": "rate",
    "there is no time zone": "timezone",
    "a sliding_log keeps": "rate",
    "refill='interval'": "refill",
}
# How those begin that are about two options, and what the first of them is when it is not to blame.
_PAIRS: Final = (
    ("resolution and strict", ("resolution", 1), "strict"),
    ("cost and count_denied", ("cost", 1), "count_denied"),
)
_NAMED: Final = re.compile(rf"\b(name|{'|'.join(OPTIONS)})s?\b")


def blamed(sentence: str, row: Any) -> str:
    """The field that is to be mended: mostly the option that the sentence names first."""
    for start, (field, harmless), other in _PAIRS:
        if sentence.startswith(start) and getattr(row, field) == harmless:
            return other
    for start, field in _BEGINNINGS.items():
        if sentence.startswith(start):
            return field
    named = _NAMED.search(sentence)
    return named[1].replace("rates", "rate") if named else "algorithm"
