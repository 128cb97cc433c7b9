"""The wait that an answer of another server asks for: ``Retry-After``, and the ``RateLimit`` fields of every draft.

Invalid fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_FIELD_LENGTH: Final = 4_096  # characters that are read
TOO_MANY_REQUESTS: Final = 429
SERVICE_UNAVAILABLE: Final = 503
DEFAULT_WAIT_SECONDS: Final = 1.0  # for a 429 without a wait
# Larger numbers are times since 1970 (from 2001 on). A thousand times larger ones are in the next smaller unit.
MIN_TIMESTAMP: Final = 1e9
UNITS_PER_SECOND: Final = 1e9, 1e6, 1e3, 1.0  # nanoseconds, microseconds, milliseconds, seconds
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Comma between fields that a proxy has joined; the comma of an HTTP date follows the name of a weekday.
_FIELD_END: Final = re.compile(r"(?<!day)(?<!Mon|Tue|Wed|Thu|Fri|Sat|Sun),", re.IGNORECASE)
# A comma, or a text between commas and semicolons. A quoted string may contain both; it may lack its closing quote.
_PIECE: Final = re.compile(r',|(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[^,;"])+')


def asked_wait(status: int, headers: Mapping[str, str], now: float) -> float:
    """Return the seconds until the next call may come, or 0.0 if the answer asks for nothing.

    A 429 always asks for a wait. ``headers`` ignores the case of its names. ``now`` is in seconds since 1970. Times are
    compared with the answer's ``Date`` if that is valid, else with ``now``.
    """
    texts = [*_quota_resets(headers)]
    if status in (TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE) and (text := headers.get("Retry-After")):
        texts.append(text)
    date = _date(headers.get("Date", ""))
    waits = [_seconds(text, now if date is None else date) for text in texts]
    return max(waits, default=0.0) or (DEFAULT_WAIT_SECONDS if status == TOO_MANY_REQUESTS else 0.0)


def _quota_resets(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the resets of exhausted quotas."""
    fields = {name: headers.get(name, "") for name in ("RateLimit", "RateLimit-Policy")}
    members = {name: list(_members(text[:MAX_FIELD_LENGTH])) for name, text in fields.items() if text}
    windows = {name: parameters.get("w", "") for name, parameters in members.get("RateLimit-Policy", ())}
    flat: dict[str, str] = {}  # draft 07 has a single quota, without a name
    for name, parameters in members.get("RateLimit", ()):
        key, _, value = name.partition("=")
        flat[key.strip()] = value.strip()
        if parameters.get("r") == "0":
            yield parameters.get("t") or windows.get(name, "")
    if flat.get("remaining", headers.get("RateLimit-Remaining", "").strip()) == "0":
        yield flat.get("reset") or headers.get("RateLimit-Reset", "")


def _members(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list of structured fields (RFC 9651), with their parameters."""
    pieces: list[str] = []
    for piece in [*_PIECE.findall(text), ","]:
        if piece != ",":
            pieces.append(piece.strip())
        elif pieces:
            name, *parameters = pieces
            pairs = [parameter.partition("=") for parameter in parameters]
            yield name, {key.strip(): value.strip() for key, _, value in pairs}
            pieces = []


def _seconds(text: str, since: float) -> float:
    """Return the seconds from ``since`` until a number or a date, the largest of joined fields.

    Parts in the past or invalid are 0.0.
    """
    return max(_part_seconds(part.strip(), since) for part in _FIELD_END.split(text[:MAX_FIELD_LENGTH]))


def _part_seconds(text: str, since: float) -> float:
    if not _NUMBER.fullmatch(text):
        until = _date(text)
        return 0.0 if until is None else max(0.0, until - since)
    number = float(text)
    if number < MIN_TIMESTAMP:
        return number
    timestamps = [number / unit for unit in UNITS_PER_SECOND if number >= MIN_TIMESTAMP * unit]
    return max(0.0, timestamps[0] - since)


def _date(text: str) -> float | None:
    """Return the timestamp of an HTTP or ISO 8601 date, in GMT if it lacks a zone; None if it is invalid."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, TypeError, OverflowError, IndexError):
            date = parse(text[:MAX_FIELD_LENGTH])
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None
