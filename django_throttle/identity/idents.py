"""Idents as text: a kind, a colon, a value; no two callers ever share one."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from decimal import Decimal
from typing import Final
from uuid import UUID

from django_throttle.exceptions import InvalidIdent

MAX_VALUE: Final = 512
# In front of the hash of what is longer.
HASHED: Final = "~"
# What has one text, today and in every process; the repr of any other object may hold its place in memory.
PLAIN: Final = (str, int, float, Decimal, UUID)


def tagged(kind: str, value: object) -> str | None:
    """The ident; None for no value and for an empty one, which is nobody's."""
    return None if value is None or value == "" else f"{kind}:{bounded(text_of(value))}"


def combined(key: str, parts: Iterable[str | None]) -> str | None:
    """One ident of several, in the order of the key; None when one of them is None."""
    found = tuple(parts)
    if None in found:
        return None
    # What joins them is escaped in each, so that no part can pretend to be two.
    escaped = (str(part).replace("%", "%25").replace("+", "%2B") for part in found)
    return tagged(key, "+".join(escaped))


def plain(what: str, value: object) -> object:
    """The value itself. Raises InvalidIdent for one that differs from call to call, and so would never be limited."""
    if value is None or (isinstance(value, PLAIN) and not isinstance(value, bool)):
        return value
    if inspect.iscoroutine(value):
        value.close()
    kind = type(value).__name__
    hint = "; it must not be async" if inspect.isawaitable(value) else ""
    raise InvalidIdent(f"{what} returns a text, a number or None, not {kind}{hint}")


def text_of(value: object) -> str:
    """The text of what ``plain`` lets through; Python writes an int of thousands of digits in hexadecimal only."""
    try:
        return str(value)
    except ValueError:
        if not isinstance(value, int):
            raise
        return hex(value)


def bounded(value: str) -> str:
    """The text, or its hash where it is long."""
    # What looks like a hash is hashed too, lest a short text be another's hash.
    if len(value) <= MAX_VALUE and not value.startswith(HASHED):
        return value
    return HASHED + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
