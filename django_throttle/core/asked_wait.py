"""How long an answer asks its client to wait: ``Retry-After``, and the ``RateLimit`` fields of every draft.

Tolerant, as what another server sends need not be well-formed: what is invalid asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

MOST_TEXT: Final = 4_096  # characters of a field that are read
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503
# The wait of a 429 that names none, or one that is over.
PLAIN_SECONDS: Final = 1.0
# From here on a number is a moment since 1970 (2001 and later), and a thousand times as much is one in the next unit.
MOMENT_SECONDS: Final = 1e9
UNITS_PER_SECOND: Final = 1e9, 1e6, 1e3, 1.0  # nanoseconds, microseconds, milliseconds, seconds
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# A comma, or what stands between commas and semicolons. A string has both, and ends with the text at the latest.
_PIECE: Final = re.compile(r',|(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[^,;"])+')


def asked_wait(status: int, headers: Mapping[str, str], now: float) -> float:
    """Return the seconds until the next call may come, or 0.0 if the answer asks for nothing.

    A 429 always asks for a wait. ``headers`` ignores the case of its names. ``now`` is in seconds since 1970; moments
    are compared with the answer's own ``Date`` if it has a valid one, else with ``now``.
    """
    texts = [*_quota_resets(headers)]
    if status in (TOO_MANY, UNAVAILABLE) and (text := headers.get("Retry-After")):
        texts.append(text)
    date = _date(headers.get("Date", ""))
    waits = [_seconds(text, now if date is None else date) for text in texts]
    return max(waits, default=0.0) or (PLAIN_SECONDS if status == TOO_MANY else 0.0)


def _quota_resets(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the reset of each quota of which nothing is left."""
    fields = {name: headers.get(name, "") for name in ("RateLimit", "RateLimit-Policy")}
    members = {name: list(_members(text[:MOST_TEXT])) for name, text in fields.items() if text}
    windows = {name: parameters.get("w", "") for name, parameters in members.get("RateLimit-Policy", ())}
    flat: dict[str, str] = {}  # of draft 07, whose quota has no name
    for name, parameters in members.get("RateLimit", ()):
        key, _, value = name.partition("=")
        flat[key.strip()] = value.strip()
        if parameters.get("r") == "0":
            yield parameters.get("t") or windows.get(name, "")
    if flat.get("remaining", headers.get("RateLimit-Remaining", "").strip()) == "0":
        yield flat.get("reset") or headers.get("RateLimit-Reset", "")


def _members(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The members of a list of structured fields, each with its parameters."""
    pieces: list[str] = []
    for piece in [*_PIECE.findall(text), ","]:
        if piece != ",":
            pieces.append(piece.strip())
        elif pieces:
            name, *parameters = pieces
            pairs = [one.partition("=") for one in parameters]
            yield name, {key.strip(): value.strip() for key, _, value in pairs}
            pieces = []


def _seconds(text: str, since: float) -> float:
    """Return how long the text asks to wait from ``since`` on: a number, or a date. 0.0 if it is over, or invalid."""
    text = text[:MOST_TEXT].strip()
    if not _NUMBER.fullmatch(text):
        until = _date(text)
        return 0.0 if until is None else max(0.0, until - since)
    number = float(text)
    if number < MOMENT_SECONDS:
        return number
    moments = [number / unit for unit in UNITS_PER_SECOND if number >= MOMENT_SECONDS * unit]
    return max(0.0, moments[0] - since)


def _date(text: str) -> float | None:
    """Return the moment of an HTTP date, which is in GMT even where it names no zone."""
    try:
        date = parsedate_to_datetime(text[:MOST_TEXT])
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
